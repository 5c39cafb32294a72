#!/bin/sh
# bind.sh PROGRAM ARGUMENT..: starts a rank's program on the CPUs beside its CUDA device: those of the device's NUMA node,
# divided among the ranks of the machine that have devices there. A launcher starts this script once for each rank.
#     mpirun --bind-to none -np 8 tools/launch/bind.sh build/nemocube train RECIPE
# Where the machine does not say what lies where, the program starts unbound. The choice of network interfaces is NCCL's, which
# takes those nearest to each device; NCCL_IB_HCA and NCCL_SOCKET_IFNAME limit it.
set -eu
sys=${NEMOCUBE_SYS:-/sys}

rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${MPI_LOCALRANKID:-}}}
if [ -z "$rank" ]; then
  echo "bind.sh: no launcher says which rank of the machine this is: not bound" >&2
  exec "$@"
fi
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
if [ "$count" -eq 0 ]; then
  echo "bind.sh: nvidia-smi lists no device: not bound" >&2
  exec "$@"
fi
# nodes: the NUMA node of each device.
nodes=$(for device in $devices; do cat "$sys/bus/pci/devices/$device/numa_node" 2>/dev/null || echo -1; done)
own=$((rank % count))
node=$(printf '%s\n' $nodes | sed -n "$((own + 1))p")
cpus=$(cat "$sys/devices/system/node/node$node/cpulist" 2>/dev/null || true)
if [ -z "$cpus" ]; then
  echo "bind.sh: the machine does not say which CPUs lie beside device $own: not bound" >&2
  exec "$@"
fi
# The share of the ranks whose devices are of this NUMA node: every n-th of its CPUs, as a list of single CPUs.
sharers=$(printf '%s\n' $nodes | grep -cx -- "$node")
place=$(printf '%s\n' $nodes | sed -n "1,$((own + 1))p" | grep -cx -- "$node")
mine=$(printf '%s\n' "$cpus" | tr ',' '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }' |
  awk -v sharers="$sharers" -v place="$place" '{ all[NR] = $1 }
    END { for (i = int(NR * (place - 1) / sharers) + 1; i <= int(NR * place / sharers); i++) print all[i] }' |
  paste -sd, -)
if [ -z "$mine" ]; then
  echo "bind.sh: NUMA node $node has fewer CPUs than ranks: not bound" >&2
  exec "$@"
fi
exec taskset -c "$mine" "$@"
