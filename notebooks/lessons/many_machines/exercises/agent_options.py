"""A hunt: a rendezvous at which no agent opens the store, or each of them opens one of its own."""

import contextlib
import io
from typing import NamedTuple

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


class Job(NamedTuple):
    """A case: what the agents of a job are started for."""

    addresses: list
    """By node."""
    gpus: int
    """Of each node."""
    name: str


def read_by_torchrun(options):
    """{name of an option: its value}, as torchrun's own parser reads them; where it refuses them, only why."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            read = get_args_parser().parse_args([*options, "train.py"])
        least, most = parse_min_max_nnodes(read.nnodes)
        host, port = parse_rendezvous_endpoint(read.rdzv_endpoint, 29400)
        conf = RendezvousParameters("c10d", "", "job", 1, 1, **_parse_rendezvous_config(read.rdzv_conf))
        is_host = conf.get_as_bool("is_host")
    except (SystemExit, ValueError) as error:
        words = complaint.getvalue().strip() or str(error)
        return {"refused by torchrun's parser": words.splitlines()[-1]}
    return {
        "refused by torchrun's parser": None,
        "script": " ".join([read.training_script, *read.training_script_args]),
        "--standalone": read.standalone,
        "--rdzv-backend": read.rdzv_backend,
        "--nnodes": f"{least}:{most}",
        "--nproc-per-node": str(read.nproc_per_node),
        "--rdzv-id": read.rdzv_id,
        "--rdzv-endpoint": f"{host}:{port}",
        "--local-addr": read.local_addr,
        "--max-restarts": read.max_restarts,
        "is_host": is_host,
    }


class AgentOptions(Alone):
    title = "Hunt: nobody opens the door"
    task = ("Return the list of torchrun's options for the agent on `node` (0, 1, …) of a job named `job`. "
            "`addresses[i]` is node i's address; names of nodes cannot be looked up. The job may begin with one "
            "node, and takes up to as many as there are addresses. Each starts `gpus` ranks. The agents meet over "
            "c10d at port 29500 of the **last** node. None has to guess who opens the store there, nor its own "
            "address. Each restarts after up to three failures of its ranks.")
    hints = (
        "Which options must be the same on all nodes, because they are what the nodes have in common?",
        "`--rdzv-conf=is_host=1` on the node whose address is the endpoint's, `is_host=0` elsewhere. "
        "Others reach a node at `--local-addr`.",
    )
    explanation = "One name, one endpoint, one host. The rest is each node's own: its ranks, and its address."
    why = ("an agent that is not told guesses whether it is the host, by comparing names and addresses. On a "
           "cluster, in containers and on machines with two network cards that guess fails, with a time-out "
           "that says only that nobody answered.")

    cases = {
        "two nodes": Job(["10.0.0.1", "10.0.0.2"], 1, "lab"),
        "three nodes": Job(["10.1.7.30", "10.1.7.4", "10.1.10.1"], 8, "4711"),
        "one node": Job(["192.168.1.5"], 2, "small"),
    }

    def answer(node, addresses, gpus, job):
        options = ["--rdzv-backend=c10d", "--max-restarts=3"]
        options.append(f"--nnodes=1:{len(addresses)}")                  #: nodes
        options.append(f"--nproc-per-node={gpus}")                      #: ranks
        options.append(f"--rdzv-id={job}")                              #: job
        options.append(f"--rdzv-endpoint={addresses[-1]}:29500")        #: endpoint
        is_host = int(node == len(addresses) - 1)
        options.append(f"--rdzv-conf=is_host={is_host}")                #: host
        options.append(f"--local-addr={addresses[node]}")               #: address
        return options

    def observe(agent_options, job):
        read = {}  # {name of an option: {node: its value}}
        for node in range(len(job.addresses)):
            returned = agent_options(node, list(job.addresses), job.gpus, job.name)
            if isinstance(returned, str):
                values = {"refused by torchrun's parser": "one text, not a list of texts"}
            else:
                values = read_by_torchrun([str(option) for option in returned])
            for name, value in values.items():
                read.setdefault(name, {})[f"node {node}"] = value
        return read

    # ---------------------------------------------------------------------------------------- what must hold

    ranks_of_a_node = "the ranks of one node"
    names_of_the_job = "agents meet only those that give the same name"
    own_address = "how others reach this node, whose name leads nowhere"

    rules = (
        same("refused by torchrun's parser",  # then nothing else was read
             'one list of texts, options only: "--nnodes=2", or "--nnodes", "2"; `torchrun --help` lists them'),
        same("script", "options only: the check adds the script, `train.py`, at the end"),
        same("--standalone", "that is for one machine, and overrides the endpoint"),
        same("--rdzv-backend", "without it there is no rendezvous at which agents can meet again"),
        same("--nnodes", "how many agents, at least and at most?"),
        same("--nproc-per-node", ranks_of_a_node),
        same("--rdzv-id", names_of_the_job),
        same("--rdzv-endpoint", "where all meet: one address, and a port"),
        same("--local-addr", own_address),
        same("--max-restarts", "torchrun's default is no restart at all"),
        same("is_host", "`--rdzv-conf=is_host=…`: an agent that is not told has to guess whether it opens the store"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(names_of_the_job, job='options.append(f"--rdzv-id={job}-{node}")'),
        mistake("all meet at the last node, none at its own door",
                endpoint='options.append(f"--rdzv-endpoint={addresses[node]}:29500")'),
        mistake("without a port, torchrun takes 29400", endpoint='options.append(f"--rdzv-endpoint={addresses[-1]}")'),
        mistake("each agent has to guess: who opens the store?", host=""),
        mistake("a node with a store of its own meets nobody: only the last one opens one",
                host='options.append("--rdzv-conf=is_host=1")'),
        mistake("all wait for a store, and nobody opens it: the last node does",
                host='options.append("--rdzv-conf=is_host=0")'),
        mistake(own_address, address='options.append(f"--local-addr={addresses[0]}")'),
        mistake("another job has another number of nodes", nodes='options.append("--nnodes=1:2")'),
        mistake("the job may begin with one node", nodes='options.append(f"--nnodes={len(addresses)}")'),
        mistake(ranks_of_a_node, ranks='options.append("--nproc-per-node=1")'),
    )


agent_options = AgentOptions()
