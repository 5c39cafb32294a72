"""Runs of one build of nemocube, and what of them can be compared."""

import hashlib
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

SECONDS = 300  # the limit of one command

# Fields of logs that tell of clocks, memory, the build, and sizes of files that name the build.
LOG_FIELDS = ("version", "timestamp", "tps", "tps_per_gpu", "mem", "positions_per_second", "content_tokens_per_second",
              "label_tokens_per_second", "samples_per_second", "data_seconds", "communication_seconds",
              "communication_waiting_seconds", "seconds", "process", "bytes")
# Files of a checkpoint or a run of which only the fields that are not named here are compared, as JSON.
JSON_FIELDS = {"state.json": ("origin",), "checksums.json": ("state.json", "config.yaml")}
# Texts in what is printed and in logs, and what stands for them. They depend
#  - on clocks: the speed in the line about the end of a run,
#  - on the version of the build, which is replaced too: in inspect's list of the files of a checkpoint, the size
#    of state.json and the sum of all sizes,
#  - on what the process holds already: memory for libraries, and the sum with it,
#  - on chance: which of several ranks speaks of a mistake that all of them have found.
REPLACED = [(r"in [0-9hms. ]+, [0-9.k]+ tokens/s", "in TIME"), (r" *[0-9.]+ k?B  state\.json", "SIZE  state.json"),
            (r"(files +\d+), [0-9.]+ .?B", r"\1, SIZE"), (r'\{"name":"state\.json","bytes":\d+\}', '"state.json"'),
            (r"needs about [0-9.]+ .?B of memory", "needs about SIZE of memory"),
            (r"threads about [0-9.]+ .?B", "threads about SIZE"),
            (r"^\[rank \d+\] ", "")]
# Lines that a run says and that are not compared.
TIMED_LINES = ("the start took ", "step ", "checkpoint ", "profile ", "profile: ")


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


class Program:
    """nemocube at `path`."""

    def __init__(self, path, jobs_folder):
        self.path = Path(path).resolve()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "LC_ALL": "C",
                            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_btl_tcp_if_include": "lo", "PRTE_MCA_prte_tmpdir_base": str(jobs_folder)}
        for name in ("HF_HOME", "HF_HUB_CACHE"):
            self.environment.pop(name, None)
        self.version = ""
        said = self.run(jobs_folder, ["--version"]).out.splitlines()
        self.version = said[0].removeprefix("nemocube ") if said else ""

    def run(self, folder, words, ranks=None):
        start = []
        if ranks:
            start = ["mpirun", *quiet_mpirun(), "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        process = subprocess.Popen([*start, str(self.path), *map(str, words)], cwd=folder, env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks
            out, err = process.communicate()
            err += f"\nno end after {SECONDS} s".encode()
        return Result(process.returncode, *(self.plain(text.decode(errors="replace")) for text in (out, err)))

    def plain(self, text):
        """Without the path and the version of this build, and with REPLACED."""
        text = text.replace(str(self.path), "PROGRAM")
        if self.version:
            text = text.replace(self.version, "VERSION")
        for pattern, word in REPLACED:
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        return text


def quiet_mpirun(memory=[]):
    """Open MPI 4 writes about a rank that fails behind what the rank has said, unless it is told not to."""
    if not memory:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
        memory.append(["--quiet"] if "Open MPI) 4." in said else [])
    return memory[0]


def digest(data):
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def without(value, fields):
    """A JSON value without these fields, at any depth."""
    if isinstance(value, dict):
        return {key: without(item, fields) for key, item in value.items() if key not in fields}
    return [without(item, fields) for item in value] if isinstance(value, list) else value


def log_lines(path):
    return "\n".join(json.dumps(without(json.loads(line), LOG_FIELDS)) for line in path.read_text().splitlines())


def contents(program, folder, top):
    """Every file below `top` by its path in `folder`: the lines of a log, the text of JSON or YAML, a checksum."""
    files = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            files[name] = f"link to {os.readlink(path)}"
        elif path.is_file() and path.suffix == ".jsonl":
            files[name] = program.plain(log_lines(path))
        elif path.name in JSON_FIELDS:
            files[name] = json.dumps(without(json.loads(path.read_text()), JSON_FIELDS[path.name]), indent=1)
        elif path.is_file():
            data = path.read_bytes()
            files[name] = data.decode(errors="replace") if path.suffix in (".json", ".yaml") else digest(data)
    return files


def outcome(result, err=True):
    """Exit code and texts of a command, as items."""
    items = {"exit code": str(result.code), "standard output": result.out}
    return {**items, "standard error": result.err} if err else items
