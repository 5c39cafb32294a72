#!/bin/sh
# Installs CUDA's compiler, headers and runtime from NVIDIA's packages on PyPI into a folder. It needs no GPU; root only
# where pip is missing. Usage: install.sh FOLDER. Does nothing when the folder holds these versions already.
set -eu

[ $# = 1 ] || { echo "usage: install.sh FOLDER" >&2; exit 2; }
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
packages=$here/requirements.txt
if cmp -s "$packages" "$folder/requirements.txt"; then
  echo "cuda-toolkit: $folder is up to date"
  exit 0
fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "cuda-toolkit: the packages are for Linux x86_64, this machine is $(uname -sm)" >&2
  exit 1
fi
echo "cuda-toolkit: CUDA 13.0 from NVIDIA's packages on PyPI, under NVIDIA's licence: downloads 0.7 GB,
keeps 0.3 GB in $folder (2 GB of disk while it installs)"
python3 -m pip --version >/dev/null 2>&1 || "$here/../setup.sh" python3-pip

part=$folder.part
trap 'rm -rf "$part"' EXIT
trap 'exit 1' HUP INT TERM
rm -rf "$part"
mkdir -p "$part/tmp"
TMPDIR=$(cd "$part/tmp" && pwd) PIP_ROOT_USER_ACTION=ignore python3 -m pip install --target "$part/packages" \
  --no-deps --require-hashes --only-binary :all: --no-compile --no-cache-dir --disable-pip-version-check -r "$packages"

# The packages hold one toolkit, but for NCCL, for the names that linkers look for, and for the name of a folder.
toolkit=$part/packages/nvidia/cu13
mv "$part"/packages/nvidia/nccl/include/* "$toolkit/include"
mkdir "$toolkit/licences"
for licence in "$part"/packages/*.dist-info/licenses/License.txt; do
  package=$(basename "${licence%%.dist-info/*}")
  mv "$licence" "$toolkit/licences/$package.txt"
done
ln -s lib "$toolkit/lib64"
ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
# Of cuBLAS only the headers: nemocube does not link it, and the software GPU brings its own library.
rm "$toolkit"/lib/lib*blas*.so.*
cp "$packages" "$toolkit"  # last: marks the folder as whole
rm -rf "$folder"
mv "$toolkit" "$folder"
echo "cuda-toolkit: installed in $folder"
