"""A script runs an event loop of its own, with a process in it."""
import asyncio
import sys


async def main():
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('child')")
    print("exit code", await child.wait())
    print(await asyncio.to_thread(lambda: "from a thread"))
    return [await future for future in asyncio.as_completed([asyncio.sleep(0.01, 1), asyncio.sleep(0.02, 2)])]


print(asyncio.run(main()))
