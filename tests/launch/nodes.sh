#!/bin/bash
# nodes.sh BUILD: tries tools/launch on two nodes, network namespaces of this machine with host names of their own, joined by one
# link. 4 ranks train. An outage of 8 seconds is survived. A cut ends everything on both nodes within 40 seconds, with a message that
# names the node that is lost. A rank that is killed ends the run at once, and 2 ranks resume. A script stands in for ssh.
# Wants root, `ip netns` and unshare; where they are missing or not allowed it says so and ends with 77. About a minute and a half.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
build=$(cd "${1:?want the build folder}" && pwd)

skip() {
  echo "nodes.sh: skipped: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root, and network namespaces want root"
command -v ip >/dev/null || skip "no command ip (package iproute2)"
unshare --mount --uts true 2>/dev/null || skip "unshare --mount --uts is not allowed (a container without privileges?)"
a=nemocube-a-$$ b=nemocube-b-$$
ip netns add $a 2>/dev/null || skip "ip netns add is not allowed"

folder=$(mktemp -d)
pids() { ip netns pids $a && ip netns pids $b; }
finish() {
  status=$?
  [ "$status" = 0 ] || [ "$status" = 77 ] || tail -n 40 "$folder"/*.log 2>/dev/null || true
  pids 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
  ip netns delete $a || true
  ip netns delete $b 2>/dev/null || true
  rm -rf "$folder"
  exit "$status"
}
trap finish EXIT
ip netns add $b
ip -n $a link add net0 type veth peer name net0 netns $b
ip -n $a address add 10.199.0.1/24 dev net0
ip -n $b address add 10.199.0.2/24 dev net0
for node in $a $b; do
  ip -n $node link set net0 up
  ip -n $node link set lo up
done

cd "$folder"
printf '127.0.0.1 localhost\n10.199.0.1 node-a\n10.199.0.2 node-b\n' >hosts
# on NODE WORD..: runs a command on a node.
cat >on <<END
#!/bin/sh
case \$1 in
  node-a) space=$a ;;
  node-b) space=$b ;;
  *) echo "on: no node \$1" >&2; exit 2 ;;
esac
exec ip netns exec \$space unshare --mount --uts sh -c \
  'mount --bind "$folder/hosts" /etc/hosts && hostname "\$1" && shift && exec "\$@"' sh "\$@"
END
# agent NODE WORD..: as ssh does, joins the words and gives them to a shell.
cat >agent <<END
#!/bin/sh
node=\$1
shift
exec "$folder/on" "\$node" sh -c "\$*"
END
chmod +x on agent
printf 'node-a slots=2\nnode-b slots=2\n' >"four ranks"
printf 'node-a slots=1  # a comment\n\nnode-b slots = 1\n' >two
. "$here/small_run.sh"
write_run work "$repository"

export NEMOCUBE=$build/nemocube OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=$folder/agent OMPI_MCA_oob_tcp_if_include=net0 OMPI_MCA_btl_tcp_if_include=net0
export PRTE_MCA_plm_ssh_agent=$folder/agent PRTE_MCA_prte_if_include=net0

fail() {
  echo "nodes.sh: $1" >&2
  exit 1
}
# says LOG WORD..
says() {
  local log=$1 word
  shift
  for word; do grep -q -- "$word" "$folder/$log" || fail "$log does not say '$word'"; done
}
steps() { { wc -l <"$folder/work/run/training.jsonl"; } 2>/dev/null || echo 0; }
ended() { ! kill -0 "$launcher" 2>/dev/null; }
# start LOG WORD..: mpirun.sh on node-a; sets `launcher`.
start() {
  local log=$folder/$1
  shift
  (cd "$folder/work" && exec "$folder/on" node-a "it's \$a repository/tools/launch/mpirun.sh" "$@") >"$log" 2>&1 &
  launcher=$!
}
# trained N: waits for N more steps.
trained() {
  local until=$(($(steps) + $1)) end=$((SECONDS + 60))
  until [ "$(steps)" -ge $until ]; do
    ended && fail "the run has ended"
    [ $SECONDS -lt $end ] || fail "no step in a minute"
    sleep 0.1
  done
}
link() { ip -n $b link set net0 "$1"; }
# all_end SECONDS: waits until no process is left on either node; prints how many seconds that took.
all_end() {
  local begin=$SECONDS
  until ended && [ -z "$(pids)" ]; do
    [ $((SECONDS - begin)) -lt "$1" ] || fail "after $1 seconds there still are $(pids | xargs -r ps -o pid=,args= -p | head -n 20)"
    sleep 0.2
  done
  echo $((SECONDS - begin))
}

start outage.log --hostfile "../four ranks" recipe.yaml
trained 2
says outage.log "4 ranks" "2 nodes"
link down
sleep 8
link up
trained 2
echo "nodes.sh: 4 ranks on 2 nodes went on after an outage of 8 seconds"

link down
took=$(all_end 40)
says outage.log node-b
status=0
wait "$launcher" || status=$?
[ "$status" != 0 ] || fail "a cut: exit code 0"
link up
echo "nodes.sh: a cut ended everything within $took seconds, exit code $status: $(grep -m 1 "node-b" "$folder/outage.log")"

start killed.log --hostfile "../four ranks" recipe.yaml
trained 6
for pid in $(ip netns pids $b); do
  [ "$(cat "/proc/$pid/comm")" = nemocube ] || continue
  kill -KILL "$pid"
  break
done
took=$(all_end 30)
says killed.log "signal 9"
echo "nodes.sh: a rank was killed, and everything had ended within $took seconds"

before=$(steps)
start resumed.log --hostfile ../two recipe.yaml
trained 2
says resumed.log "2 ranks" resum
kill -TERM "$launcher"
took=$(all_end 30)
says resumed.log "stopped by signal 10"
status=0
wait "$launcher" || status=$?
[ "$status" = 143 ] || fail "SIGTERM: exit code $status"
echo "nodes.sh: 2 ranks on 2 nodes resumed at step $before and saved on SIGTERM within $took seconds"
