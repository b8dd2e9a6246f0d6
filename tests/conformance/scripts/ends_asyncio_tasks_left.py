"""A task that asyncio.run finds unfinished is cancelled, and one of a loop that nobody closed is reported."""
# nprocs: 1
import asyncio


async def forever():
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled")


async def main():
    asyncio.create_task(forever())  # noqa: RUF006
    await asyncio.sleep(0.01)


asyncio.run(main())
loop = asyncio.new_event_loop()
tasks = [loop.create_task(asyncio.sleep(60))]
loop.run_until_complete(asyncio.sleep(0.01))
