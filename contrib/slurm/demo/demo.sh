#!/usr/bin/env bash
# The demo of docs/slurm.md on a real Slurm on this machine: controller, two nodes, database, munge, all in a temporary folder.
# Real: Slurm, its queue, refusals and accounting, the service, its estimates. Simulated: the cards (see node/torchrun).
# Needs root on Debian, and: apt-get install slurm-wlm slurmdbd slurm-wlm-mysql-plugin munge mariadb-server bubblewrap
# usage: demo.sh VRAMCAST    the command, .venv/bin/vramcast
set -euo pipefail
vramcast=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
for program in slurmctld slurmd slurmdbd munged mariadbd mariadb-install-db bwrap runuser; do
    command -v "$program" > /dev/null || { sed -n 4p "$here/demo.sh" >&2; echo "missing: $program" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { sed -n 4p "$here/demo.sh" >&2; echo "not root" >&2; exit 2; }

root=$(mktemp -d /tmp/vramcast-slurm.XXXXXX)
chmod 755 "$root"
daemons=()
finish() {
    for pid in "$root"/run/*.pid; do [ -e "$pid" ] && kill "$(cat "$pid")" 2> /dev/null; done
    for pid in "${daemons[@]}"; do kill "$pid" 2> /dev/null; done
    wait
    [ -n "${DEMO_KEEP:-}" ] && echo "kept: $root" >&2 || rm -rf "$root"
}
trap 'finish || true' EXIT

# --- the site: Slurm with two partitions, each with a node that has one card --------------------------------------------------
mkdir "$root"/{cards,db,etc,jobs,log,run,site,spool,state}
chmod 777 "$root"/{cards,jobs,run}
free_port() { /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
controller=$(free_port) small=$(free_port) large=$(free_port) database=$(free_port) service=$(free_port)
cat > "$root/etc/slurm.conf" <<END
ClusterName=demo
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$root/run/munge.socket,cred_expire=5
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd-%n.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$database
AccountingStoragePass=$root/run/munge.socket
AccountingStoreFlags=job_comment
AccountingStorageTRES=gres/gpu,gres/shard
CliFilterPlugins=lua
Epilog=$root/etc/epilog.sh
NodeName=small NodeHostname=localhost NodeAddr=127.0.0.1 Port=$small CPUs=8 CoresPerSocket=8 RealMemory=1000 Gres=gpu:1,shard:14
NodeName=large NodeHostname=localhost NodeAddr=127.0.0.1 Port=$large CPUs=8 CoresPerSocket=8 RealMemory=1000 Gres=gpu:1,shard:39
PartitionName=small Nodes=small Default=YES MaxTime=10
PartitionName=large Nodes=large MaxTime=10
END
touch "$root"/cards-{small,large}
cat > "$root/etc/gres.conf" <<END
AutoDetect=off
NodeName=small Name=gpu File=$root/cards-small
NodeName=small Name=shard Count=14
NodeName=large Name=gpu File=$root/cards-large
NodeName=large Name=shard Count=39
END
cat > "$root/etc/slurmdbd.conf" <<END
AuthInfo=socket=$root/run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$database
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=demo
LogFile=$root/log/slurmdbd.log
PidFile=$root/run/slurmdbd.pid
END
chmod 600 "$root/etc/slurmdbd.conf"

# --- vramcast's part: the hooks, next to slurm.conf; on each node the epilog and the sampler -----------------------------------
cp -rL "$here/../../../vramcast" "$root/site/"
/usr/bin/python3 -m venv --without-pip "$root/opt"  # isolated, as in the hooks, it ignores PYTHONPATH
for packages in "$root"/opt/lib/python3*/site-packages; do echo "$root/site" > "$packages/vramcast.pth"; done
printf '%s\n' 'a-token-of-the-demo' > "$root/etc/token"
cat > "$root/etc/vramcast.toml" <<END
service = "http://127.0.0.1:$service"
token_file = "$root/etc/token"
mode = "fill"
requeues = true
writes_admin_comment = true
peaks_folder = "$root/peaks"
outbox = "$root/outbox"
[partitions]
small = "t4"
large = "a100-40gb"
END
for hook in cli_filter.lua epilog.sh; do
    sed "s|/opt/vramcast/bin/python|$root/opt/bin/python|; s|/etc/slurm/vramcast.toml|$root/etc/vramcast.toml|" "$here/../$hook" \
        > "$root/etc/$hook"
done
chmod 755 "$root/etc/epilog.sh"
cp -r "$here/node" "$root/"
cp "$here"/jobs/* "$root/jobs/"
export SLURM_CONF=$root/etc/slurm.conf MYSQL_UNIX_PORT=$root/run/mariadb.socket

head -c 1024 /dev/urandom > "$root/etc/munge.key"
chmod 400 "$root/etc/munge.key"
munged --force --key-file="$root/etc/munge.key" --socket="$root/run/munge.socket" --pid-file="$root/run/munged.pid" \
    --log-file="$root/log/munged.log" --seed-file="$root/run/munge.seed" 2> /dev/null
chown mysql "$root/db"
mariadb-install-db --no-defaults --user=mysql --datadir="$root/db" --auth-root-authentication-method=normal > "$root/log/mariadb" 2>&1
mariadbd --no-defaults --user=mysql --datadir="$root/db" --socket="$MYSQL_UNIX_PORT" --skip-networking \
    --pid-file="$root/run/mariadb.pid" --innodb-lock-wait-timeout=900 >> "$root/log/mariadb" 2>&1 &
daemons+=($!)
until [ -S "$MYSQL_UNIX_PORT" ]; do sleep 0.2; done
mariadb --no-defaults --user=root --socket="$MYSQL_UNIX_PORT" --execute \
    "create user slurm@localhost identified by 'demo'; grant all on slurm_acct_db.* to slurm@localhost"
slurmdbd
until sacctmgr --immediate add cluster demo > "$root/log/sacctmgr" 2>&1; do sleep 0.5; done
slurmctld
slurmd -N small
slurmd -N large
PATH=$root/node:$PATH "$root/opt/bin/python" -I -P -m vramcast.cluster.slurm --settings "$root/etc/vramcast.toml" peaks &
daemons+=($!)
serve() {
    "$vramcast" serve --port "$service" --data "$root/data" --token-file "$root/etc/token" --allow-code --workers 2 \
        >> "$root/log/service" 2>&1 &
    server=$!
    daemons+=("$server")
    until curl --noproxy 127.0.0.1 --silent --fail "http://127.0.0.1:$service/healthz" > /dev/null; do sleep 0.2; done
}
serve
until [ "$(sinfo --noheader --format=%T | sort --unique)" = idle ]; do sleep 0.5; done

# --- the demo -------------------------------------------------------------------------------------------------------------------
cd "$root/jobs"
as_user() { runuser --user nobody -- env HOME="$root/jobs" PATH="$root/node:$PATH" DEMO_TAKES_MIB="${takes_mib:-1000}" "$@"; }
show() { printf '\n$ %s\n' "$*"; as_user "$@" 2>&1 | sed "s|$root|/cluster|g"; }
title() { printf '\n# %s\n' "$@"; }
ended() { until [ -z "$(squeue --noheader)" ]; do sleep 0.5; done; }
# The service needs some seconds for a new job: an answer that is not ready within two seconds is requested again.
answered() {
    as_user "$root/opt/bin/python" -I -P -m vramcast.cluster.slurm --settings "$root/etc/vramcast.toml" submit sbatch \
        "{\"argv\": [\"$1\"], \"gres\": \"gres:gpu:1\", \"partition\": \"small\"}"
}
warm_up() { for script in "$@"; do while answered "$script" | grep -q 'not ready'; do sleep 1; done; done; }

title "A training command that is new to the service: the first submission does not wait for its estimate."
takes_mib=700
show cat digits.sh
show sbatch digits.sh
warm_up resnet50.sh vit_large.sh vit_huge_batch.sh digits.sh
title "The second time the answer is ready. The job requested a whole card, and gets the part that it needs."
show sbatch digits.sh
title "The same for a job that names its model. Two of them run side by side on one card."
takes_mib=3250
show sbatch resnet50.sh
show sbatch resnet50.sh
for _ in $(seq 20); do
    [ "$(squeue --noheader --states=RUNNING --name=resnet50 | wc -l)" = 2 ] && break
    sleep 0.5
done
show squeue --format='%i %j %T %P %b'
ended
title "Too large for the requested partition, and too large for any."
show sbatch --partition=small vit_large.sh || true
show sbatch vit_huge_batch.sh || true
title "Without a partition: the first one with room."
takes_mib=24100
show sbatch vit_large.sh
ended
title "A job needs more than its bound: it dies, and is requeued with a larger request."
takes_mib=6500
show sbatch --comment='the long sequences' resnet50.sh
job=$(squeue --noheader --format=%i)
before=$(squeue --noheader --jobs="$job" --format=%b)
# Between the end of its epilog and its requeue, the job is not in the queue at all.
until now=$(squeue --noheader --jobs="$job" --format=%b) && [ -n "$now" ] && [ "$now" != "$before" ]; do sleep 0.5; done
show squeue --format='%i %j %T %r %b'
until [ -z "$(squeue --noheader)" ]; do sleep 1; done
show cat "slurm-$job.out"
title "A week of other users' jobs, each with a model of its own (their scripts differ in its name)."
show cat model.sh
for model in resnet18 resnet34 squeezenet1_1 mobilenet_v2 shufflenet_v2_x1_0 efficientnet_b0 regnet_y_400mf vgg11; do
    sed "s/MODEL/$model/" model.sh > "$model.sh"
    warm_up "$model.sh"
    takes_mib=1000
    estimate=$(answered "$model.sh" | sed -n 's/^say vramcast: \([0-9.]* [MG]iB\),.*/\1/p')
    takes_mib=$(echo "$estimate" | awk '{ printf "%d", $1 * ($2 == "GiB" ? 1024 : 1) + 40 }')
    as_user sbatch "$model.sh" 2>&1 | sed -n 1p
done
ended
title "The service is down: no submission waits or fails because of it."
kill "$server"; wait "$server" 2> /dev/null || true
takes_mib=3250
began=$(date +%s%N)
show sbatch resnet50.sh
echo "($((($(date +%s%N) - began) / 1000000)) ms)"
serve
ended
title "Metrics of the service, from the epilogs' reports."
curl --noproxy 127.0.0.1 --silent --header "Authorization: Bearer $(cat "$root/etc/token")" "http://127.0.0.1:$service/metrics" |
    grep -E '^vramcast_(coverage|observations|overprovision)' || true
title "Slurm's accounting of the jobs: the epilog has added their peaks."
until [ "$(sacct --allusers --noheader --parsable2 --allocations --format=AdminComment | grep -c vramcast-peak)" -ge 15 ]; do sleep 1; done
show sacct --allusers --allocations --parsable2 --format=JobID,JobName,State,AllocTRES,AdminComment
sacct --allusers --parsable2 --format=JobID,JobName,User,State,AllocTRES,AdminComment,Elapsed,End,NodeList > "$root/jobs/sacct.txt"
title "Adoption of this history."
show head --lines=3 rules.json
printf '\n$ vramcast learn sacct.txt --join rules.json --out site\n'
"$vramcast" learn sacct.txt --join rules.json --out "$root/artifact" 2>&1 | sed "s|$root|/cluster|g" ||
    [ $? = 1 ] # ten jobs may be too few to be better than the shipped artifact, which then stays
