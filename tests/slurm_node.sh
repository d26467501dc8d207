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
  mkdir -p "$dir/spool" "$dir/state" /run/munge
  # A key of this machine alone, unless it has one.
  [[ -s /etc/munge/munge.key ]] || head -c 1024 /dev/urandom > /etc/munge/munge.key
  chown munge: /etc/munge/munge.key /run/munge
  chmod 400 /etc/munge/munge.key
  # A requeued job would wait for two minutes without the two settings that end in =5.
  cat > "$dir/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
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
  if ! pgrep -x munged > /dev/null; then
    runuser -u munge -- munged
    touch "$dir/munged"
  fi
  export SLURM_CONF="$dir/slurm.conf"
  slurmctld
  slurmd
  for _ in $(seq 600); do
    [[ "$(sinfo --noheader --format=%T 2> /dev/null)" == idle ]] && return
    sleep 0.1
  done
  echo "the node is not idle after a minute:"
  tail -n 5 "$dir"/slurm*.log
  return 1
}

stop() {
  for name in slurmd slurmctld; do
    kill "$(cat "$dir/$name.pid")"
  done
  if [[ -e "$dir/munged" ]]; then
    pkill -x munged
  fi
}

"$1"
