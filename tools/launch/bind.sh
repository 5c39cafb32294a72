#!/bin/sh
# bind.sh PROGRAM ARGUMENT..: starts a rank's program on the CPUs beside its CUDA device: those of the device's NUMA node,
# divided among the ranks of the machine that have devices there. A launcher starts this script once for each rank.
#     mpirun --bind-to none -np 8 tools/launch/bind.sh build/nemocube train RECIPE
# Where the machine does not say what lies where, the program starts unbound. The choice of network interfaces is NCCL's, which
# takes those nearest to each device; NCCL_IB_HCA and NCCL_SOCKET_IFNAME limit it. NEMOCUBE_SYS stands for /sys in tests.
set -eu
case "${1:-}" in
  --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit ;;
  '') echo "bind.sh: want a program (--help says more)" >&2 && exit 2 ;;
esac
sys=${NEMOCUBE_SYS:-/sys}

# unbound REASON PROGRAM ARGUMENT..: starts the program as it is.
unbound() {
  echo "bind.sh: $1: not bound" >&2
  shift
  exec "$@"
}

rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${MPI_LOCALRANKID:-}}}
[ -n "$rank" ] || unbound "no launcher says which rank of the machine this is" "$@"
# One line a device, in the order of PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID has them: "0000:1b:00.0".
export CUDA_DEVICE_ORDER=PCI_BUS_ID
devices=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | tr 'A-F' 'a-f' | sed 's/^0000//') || devices=
case "${CUDA_VISIBLE_DEVICES:-}" in
  '' | *[!0-9,]*) ;;
  *) devices=$(for number in $(echo "$CUDA_VISIBLE_DEVICES" | tr ',' ' '); do
    printf '%s\n' "$devices" | sed -n "$((number + 1))p"
  done) ;;
esac
count=$(printf '%s\n' "$devices" | grep -c . || true)
[ "$count" -gt 0 ] || unbound "nvidia-smi lists no device" "$@"
# nodes: the NUMA node of each device.
nodes=$(for device in $devices; do cat "$sys/bus/pci/devices/$device/numa_node" 2>/dev/null || echo -1; done)
own=$((rank % count))
node=$(printf '%s\n' $nodes | sed -n "$((own + 1))p")
cpus=$(cat "$sys/devices/system/node/node$node/cpulist" 2>/dev/null || true)
[ -n "$cpus" ] || unbound "the machine does not say which CPUs lie beside device $own" "$@"
# Each range of the node's CPUs ("0-31,64-95") is divided among the ranks whose devices are of this node. Where the second range
# has the second threads of the cores of the first, both threads of a core go to one rank.
sharers=$(printf '%s\n' $nodes | grep -cx -- "$node")
place=$(printf '%s\n' $nodes | sed -n "1,$((own + 1))p" | grep -cx -- "$node")
mine=$(printf '%s\n' "$cpus" | tr ',' '\n' | awk -F- -v sharers="$sharers" -v place="$place" '{
    n = ($2 == "" ? $1 : $2) - $1 + 1
    for (i = int(n * (place - 1) / sharers); i < int(n * place / sharers); i++) print $1 + i
  }' | paste -sd, -)
[ -n "$mine" ] || unbound "NUMA node $node has fewer CPUs than ranks" "$@"
exec taskset -c "$mine" "$@"
