#!/usr/bin/env bash
# A real Slurm of two nodes on one computer, from unpacked Debian packages: nothing is installed, nothing stays. Needs root.
#   bash slurm_lab.sh ROOT COMMAND...      ROOT: where `dpkg -x` put the packages; COMMAND may call sbatch, srun, sinfo
# slurmctld and two slurmd run in namespaces of their own, and end with them.
set -euo pipefail
if [ "${INSIDE:-}" != 1 ]; then
    INSIDE=1 exec unshare -nmpf --mount-proc --kill-child bash "$0" "$@"
fi
root=$(realpath "$1"); shift
lab=$(mktemp -d); trap 'rm -rf "$lab"' EXIT
export TMPDIR=$lab
lib=$root/usr/lib/$(uname -m)-linux-gnu host=$(hostname)
ip link set lo up; ip address add 10.9.9.1/32 dev lo
export LD_LIBRARY_PATH=$lib:$lib/slurm-wlm PATH=$root/usr/bin:$root/usr/sbin:$PATH SLURM_CONF=$lab/slurm.conf
mkdir "$lab/state"
cat > "$SLURM_CONF" <<CONF
ClusterName=lab
SlurmctldHost=$host(10.9.9.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PluginDir=$lib/slurm-wlm
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool-%n
SlurmctldPidFile=$lab/ctld.pid
SlurmdPidFile=$lab/%n.pid
SlurmctldLogFile=$lab/ctld.log
SlurmdLogFile=$lab/%n.log
ReturnToService=2
NodeName=node[1-2] NodeHostname=$host NodeAddr=10.9.9.1 Port=[17001-17002] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=NO
CONF
slurmctld-wlm -D > "$lab/ctld.out" 2>&1 &
for node in node1 node2; do slurmd-wlm -D -N $node -d "$root/usr/sbin/slurmstepd-wlm" > "$lab/$node.out" 2>&1 & done
for _ in $(seq 30); do
    [ "$(timeout 2 sinfo -h -t idle -o %D 2> /dev/null || true)" = 2 ] && break
    sleep 0.3
done
code=0; "$@" || code=$?
[ $code = 0 ] || tail -n 15 "$lab"/*.log "$lab"/*.out
exit $code
