"""Many machines: nodes that end with their owner, cables as slow as they say, recipes that Slurm runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers import RankError, launch
from helpers.figures import title
from helpers.nodes import Job, Nodes
from helpers.places import LESSONS
from helpers.ports import free_port
from lessons.many_machines.nodes_map import NodesMap
from tests.conftest import ROOT, eventually, running

pytestmark = pytest.mark.usefixtures("nothing_left")

LAB = Nodes(1)
NAMESPACES = LAB.shaped
LAB.close()
needs_namespaces = pytest.mark.skipif(not NAMESPACES, reason=LAB.kind)


@pytest.fixture(params=["namespaces", "loopback"])
def lab(request, monkeypatch):
    if request.param == "namespaces" and not NAMESPACES:
        pytest.skip(LAB.kind)
    monkeypatch.setenv("COURSE_NODES", request.param)
    with Nodes(2) as lab:
        yield lab
    assert not lab.folder.exists()


def said(lab, node, *command):
    return lab.start(node, command, stdout=subprocess.PIPE, text=True).communicate(timeout=20)[0]


def serves(lab, node, code):
    """Start Python on a node that prints "up" once it listens, as `s`, at port 7000."""
    code = f"import socket; s = socket.create_server(('', 7000)); print('up', flush=True)\n{code}"
    server = lab.start(node, [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "up\n"
    server.stdout.close()
    return server


def test_nodes_say_what_they_are_and_how_commands_end(lab):
    assert lab.kind.startswith("real here: this" if lab.shaped else "scaled down here: this")
    assert lab.addresses == (["10.0.0.1", "10.0.0.2"] if lab.shaped else ["127.0.0.1", "127.0.0.2"])
    assert said(lab, 1, "pwd").strip() == os.getcwd()
    assert said(lab, 0, "sh", "-c", "echo $GLOO_SOCKET_IFNAME") == f"{lab.interface}\n"
    assert lab.start(0, ["sh", "-c", "exit 7"]).wait(20) == 7
    assert lab.start(1, ["sh", "-c", "kill -9 $$"]).wait(20) == -9


def test_a_killed_node_or_job_takes_all_it_ran_with_it_and_the_nodes_work_again(lab):
    mark = f"sleep 9{os.getpid()}"
    process = lab.start(1, ["sh", "-c", f"setsid {mark} & setsid {mark}"])
    assert eventually(lambda: len(running(mark)) >= 2)
    lab.kill(1)
    assert not running(mark) and process.poll() is not None
    if lab.shaped:
        with pytest.raises(RuntimeError, match="boot"):
            lab.start(1, ["true"])
    lab.boot(1)

    job = Job(lab)
    for node in (0, 1):
        job.add(node, ["sh", "-c", f"echo hello {node}; echo '{{\"a\": {node}}}'; sleep 60"])
    assert job.until(lambda job: len(job.rows) == 2, 20)
    assert sorted(job.rows, key=str) == [{"node": 0, "a": 0}, {"node": 1, "a": 1}]
    with pytest.raises(TimeoutError, match="hello 1"):
        job.wait(0.1)
    assert None not in job.exitcodes.values()
    assert lab.start(1, ["true"]).wait(20) == 0


@pytest.mark.long
def test_one_torchrun_on_each_node(monkeypatch):
    """Without namespaces: lesson 12 trains with them."""
    monkeypatch.setenv("COURSE_NODES", "loopback")
    with Nodes(2) as lab:
        job = lab.torchrun(LESSONS / "start_here" / "hello.py")
    assert job.exitcodes == {0: 0, 1: 0}, job.outputs
    for node, text in job.outputs.items():  # ranks are numbered by the nodes' addresses
        assert f"I am rank {node} of 2" in text, job.outputs


@pytest.mark.long
def test_a_rank_that_aborts_after_its_work_is_tried_again_and_nobody_waits_for_it(tmp_path):
    """The agent of a rank that has ended well waits 300 s for the others: also for one that has failed."""
    script, tries = tmp_path / "aborts.py", tmp_path / "tries"
    script.write_text("import os, pathlib, sys\ntries = pathlib.Path(sys.argv[1])\n"
                      "if os.environ['GROUP_RANK'] == '1' and not tries.exists():\n    tries.touch()\n"
                      "    print('terminate called without an active exception', flush=True)\n"
                      "    os.abort()\n")
    began = time.monotonic()
    with Nodes(2) as lab:
        job = lab.torchrun(script, tries, timeout=100)
    assert job.exitcodes == {0: 0, 1: 0} and tries.exists(), job.outputs
    assert time.monotonic() - began < 100


@pytest.mark.long
def test_static_rendezvous_numbers_nodes_as_told_and_restarts_only_the_rank_that_failed(lab):
    """As lesson 12 says. With c10d all agents meet again, as its picture shows."""
    job, port = Job(lab), free_port()
    for node in (0, 1):
        static = ["--nnodes=2", f"--node-rank={1 - node}", f"--master-addr={lab.addresses[1]}",
                  f"--master-port={port}", "--max-restarts=3"]
        job.add(node, [sys.executable, "-m", "torch.distributed.run", *static, RECIPES / "lives.py"])

    def lives(node, since=0):
        return {row["began"] for row in list(job.rows) if row["node"] == node and row["began"] > since}

    assert job.until(lambda job: lives(0) and lives(1), 60)
    assert [rank.environ()["RANK"] for node in (0, 1) for rank in job.ranks(node)] == ["1", "0"]
    killed = time.time()
    job.ranks(1)[0].kill()
    assert job.until(lambda job: lives(1, killed), 60)
    time.sleep(3)
    assert not lives(0, killed)
    job.stop()


def test_two_machines_print_what_two_ranks_of_one_machine_did():
    """As lesson 12's first bet says: both lessons' stored outputs."""
    printed = []
    for name in ("06_ddp_in_practice", "12_many_machines"):
        cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        texts = ("".join(output["text"]) for cell in cells for output in cell.get("outputs", ())
                 if output["output_type"] == "stream")
        text = next(text for text in texts if "epoch 2: " in text)
        printed.append(re.findall(r"epoch \d: (\d+)%", text)[-3:])
    assert printed == [["69", "86", "86"]] * 2


OWNER = """
import os, sys, time
from helpers.nodes import Nodes
os.environ["COURSE_NODES"] = sys.argv[1]
lab = Nodes(2)
for node in (0, 1):
    lab.start(node, ["sh", "-c", f"setsid {sys.argv[2]} & setsid {sys.argv[2]}"])
print(lab.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["namespaces", "loopback"])
def test_nothing_outlives_an_owner_that_is_killed(kind):
    mark = f"sleep 8{os.getpid()}"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, kind, mark], cwd=ROOT, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
    folder = Path(owner.stdout.readline().strip())
    assert eventually(lambda: len(running(mark)) >= 4)
    others = list(psutil.Process(owner.pid).children(recursive=True))
    owner.kill()
    owner.communicate(timeout=20)
    assert eventually(lambda: not running(mark) and not folder.exists())
    assert not psutil.wait_procs(others, 10)[1], "keepers, guards and nodes"


@needs_namespaces
def test_nodes_reach_each_other_and_nobody_else():
    reaches = "import socket, sys; c = socket.create_connection((sys.argv[1], 7000), float(sys.argv[2])); "
    reaches += "print(c.recv(8).decode())"
    with Nodes(2) as lab:
        serves(lab, 0, "while True: s.accept()[0].sendall(b'it is me')")
        assert [row[:2] for row in lab.listening(0)] == [("0.0.0.0", 7000)]
        assert not lab.listening(1)
        assert said(lab, 1, sys.executable, "-c", reaches, lab.addresses[0], "2") == "it is me\n"
        outside = [sys.executable, "-c", reaches, lab.addresses[0], "0.5"]
        assert b"it is me" not in subprocess.run(outside, capture_output=True).stdout


@needs_namespaces
def test_a_cable_is_as_slow_as_it_says_and_can_be_changed():
    receives = "while True:\n c = s.accept()[0]\n while c.recv(65536): pass\n c.sendall(b'!'); c.close()"
    sends = ("import socket, sys, time\nc = socket.create_connection((sys.argv[1], 7000)); "
             "t = time.perf_counter(); c.sendall(bytes(10**6)); c.shutdown(socket.SHUT_WR); c.recv(1); "
             "print(time.perf_counter() - t)")
    with Nodes(2, mbit=20) as lab:
        serves(lab, 0, receives)

        def seconds():
            return float(said(lab, 1, sys.executable, "-c", sends, lab.addresses[0]))

        assert seconds() > 0.3, "8 Mbit over 20 Mbit/s, less a burst of 64 KiB"
        lab.cable(100)
        assert seconds() > 0.06
        lab.cable(None)
        assert min(seconds() for _ in range(3)) < 0.06


@pytest.mark.long
@needs_namespaces
def test_an_unplugged_node_runs_on_and_its_connections_stay_open():
    asks = ("import socket, sys; c = socket.create_connection((sys.argv[1], 7000), 5)\n"
            "def ask(): c.settimeout(1); c.sendall(b'hi'); return c.recv(9).decode()\n"
            "print(ask(), flush=True); sys.stdin.readline()\n"
            "try: print(ask())\nexcept TimeoutError: print('silence')")
    with Nodes(2) as lab:
        server = serves(lab, 1, "c = s.accept()[0]\nwhile True: c.sendall(c.recv(9))")
        asker = subprocess.Popen(["nsenter", f"--target={lab._inits[0]}", "--user", "--preserve-credentials",
                                  "--net", sys.executable, "-c", asks, lab.addresses[1]], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert asker.stdout.readline() == "hi\n"
        lab.unplug(1)
        assert asker.communicate("\n", timeout=20)[0] == "silence\n"
        assert server.poll() is None
        lab.kill(1)
        lab.boot(1)  # plugged in again


RECIPES = LESSONS / "many_machines"
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins libmunge2 libhwloc15".split()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A folder with Debian's Slurm unpacked in it."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if not (is_root and NAMESPACES and all(map(shutil.which, ("apt-get", "ip")))):
        pytest.skip("a Slurm of our own needs root, namespaces, `ip`, and Debian's packages")
    folder = tmp_path_factory.mktemp("slurm")
    fetch = ["timeout", "60", "apt-get", "download", *PACKAGES]
    if subprocess.run(fetch, cwd=folder, capture_output=True).returncode:
        pytest.skip("Debian's packages of Slurm cannot be fetched here")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return folder / "root"


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["srun.sbatch", "torchrun.sbatch"])
def test_recipes_run_under_a_real_slurm(recipe, slurm, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, torch, torch.distributed as dist\n"
                      "dist.init_process_group('gloo')\nt = torch.ones(1) * (1 + dist.get_rank())\n"
                      "dist.all_reduce(t)\n"
                      "print('rank', dist.get_rank(), os.environ['SLURMD_NODENAME'], t.item(), flush=True)\n"
                      "dist.barrier()\ndist.destroy_process_group()\n")
    command = [script] if recipe.startswith("torchrun") else [sys.executable, script]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["timeout", "-k", "5", "200", "bash", ROOT / "tests" / "slurm_lab.sh", slurm,
                           "sbatch", "--wait", "--output", tmp_path / "said", RECIPES / recipe, *command],
                          cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + said
    ranks = sorted(line for line in said.splitlines() if line.startswith("rank"))
    assert [line.split()[::3] for line in ranks] == [["rank", "3.0"]] * 2
    assert sorted(line.split()[2] for line in ranks) == ["node1", "node2"]


def test_kubernetes_job_has_the_fields_of_kubeflows_models():
    import yaml
    from kubeflow_trainer_api import models

    job = yaml.safe_load((RECIPES / "trainjob.yaml").read_text())
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job, "unknown fields would be lost"


def test_map_shows_steps_marks_and_ends():
    class Job:
        processes, exitcodes = {0: None, 1: None}, {0: 0, 1: -9}
        rows = [{"node": node, "time": time.time() + step, "step": step, "world": 2}
                for node in (0, 1) for step in (1, 2, 3)]

    live = NodesMap(Job)
    live.mark("a rank killed")
    figure = live.figure()
    assert "node 0: done after step 3 in a world of 2; node 1: killed" in figure.get_label()
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[1, 2, 3]] * 2
    assert title(figure) == "Figure: What each node has done"


@pytest.mark.long
def test_elastic_does_not_go_on_from_the_snapshot_of_another_run(tmp_path):
    launch(RECIPES / "elastic.py", nprocs=1, args=[tmp_path / "snapshot", "mine"], show=False)
    with pytest.raises(RankError) as caught:
        launch(RECIPES / "elastic.py", nprocs=1, args=[tmp_path / "snapshot", "another"], show=False)
    assert "is of run mine, not of another" in caught.value.logs[0] + str(caught.value)
