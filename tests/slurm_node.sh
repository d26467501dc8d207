#!/usr/bin/env bash
# Starts and stops a Slurm cluster of this machine alone, for tests, as root. CI_SLURM=1 installs
# Debian's packages slurm-wlm and munge if Slurm is missing.
#   tests/slurm_node.sh start DIR; export SLURM_CONF=DIR/slurm.conf
#   tests/slurm_node.sh stop DIR
set -euo pipefail
dir=$2

start() {
  if [[ -n "${CI_SLURM:-}" ]] && ! command -v slurmctld > /dev/null; then
    apt-get update -qq
    apt-get install -qq --no-install-recommends slurm-wlm munge > /dev/null
  fi
  mkdir -p "$dir/spool" "$dir/state"
  head -c 1024 /dev/urandom > "$dir/munge.key"
  chmod 400 "$dir/munge.key"
  # A requeued job would wait for two minutes without cred_expire and sched_interval.
  cat > "$dir/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket=$dir/munge.socket
SchedulerParameters=sched_interval=5
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=1
KillWait=30
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmdSpoolDir=$dir/spool
StateSaveLocation=$dir/state
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$(hostname) CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
  # A munged of its own, beside one that the machine may have. The folder is root's alone.
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
    --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" \
    2> "$dir/munged.err"
  export SLURM_CONF="$dir/slurm.conf"
  slurmctld
  slurmd
  for _ in $(seq 600); do
    [[ "$(sinfo --noheader --format=%T 2> /dev/null)" == idle ]] && return
    sleep 0.1
  done
  echo "the node is not idle after a minute:"
  tail -n 5 "$dir"/slurm*.log "$dir"/munged.*
  return 1
}

stop() {
  for name in slurmd slurmctld munged; do
    kill "$(cat "$dir/$name.pid")"
  done
}

"$1"
