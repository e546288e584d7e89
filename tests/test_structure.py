"""Rules of the code base that no reviewer has to remember."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpcddp"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each folder may import of its siblings; the single files beside them are leaves.
LEAVES = {
    "errors", "run_dir", "checkpoint_dir", "checkpoint_kept", "stop_flag", "leave", "phases",
}  # fmt: skip
ALLOWED = {
    "config": set(),
    "cluster": {"config"},
    "data": {"config"},
    "train": {"config", "data"},
    "launch": {"config", "cluster", "train"},
    "doctor": {"config", "cluster"},
    "measure": {"config", "cluster", "data", "doctor", "train"},
    "report": set(),  # reads what was measured, wherever that was
    "cli": {"config", "cluster", "doctor", "launch", "measure", "report", "train"},
}
# `launch` and `cli` reach what computes only inside functions, on the compute node.
LIGHT = ("cli", "launch", "doctor", "cluster", "config")

FORBIDDEN_NAMES = {
    "batch_size", "num_gpus", "ngpus", "num_tasks", "nproc", "procid", "nodeid", "total_batch",
    "iteration", "acc_step", "grad_acc", "is_master", "rank_zero", "ddp_model", "img_per_s",
}  # fmt: skip


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def folder_of(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_in_one_direction(path):
    folder = folder_of(path)
    for name in imported(parsed(path)):
        match = re.match(r"hpcddp\.(\w+)", name)
        if match is None or path.name == "__main__.py":
            continue
        own = ALLOWED[folder] | {folder} if folder else set()
        assert match.group(1) in LEAVES | own, f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_login_node_reaches_training_only_inside_functions(path):
    at_once = [node for node in parsed(path).body if not isinstance(node, ast.If)]
    names = set(imported(ast.Module([n for n in at_once if "Import" in type(n).__name__], [])))
    if folder_of(path) in LIGHT:
        heavy = re.compile(
            r"(torch|torchvision|numpy|matplotlib|hpcddp\.(train|data|measure|report))\b"
        )
        assert not [name for name in names if heavy.match(name)]


@pytest.mark.parametrize(
    "verb",
    [
        "submit",
        "render",
        "status",
        "logs",
        "cancel",
        "wait",
        "env",
        "cluster",
        "bench",
        "doctor",
        "report",
    ],
)
def test_verbs_of_the_login_node_do_not_load_torch(verb):
    probe = (
        f"import sys, hpcddp.cli, hpcddp.cli.{verb}; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'torchvision', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT).returncode == 0


TOOLS = {
    "sbatch": "echo 4711",
    "squeue": "echo '4711|RUNNING|main|0|0|1|9999999999|gpu-01|None|'",
    "scancel": "exit 0",
}


@pytest.fixture
def without_torch(tmp_path):
    """Return a function that runs a verb where Slurm's tools are pretended, and looks whether
    torch was loaded by the time it has done its work.
    """
    (tmp_path / "bin").mkdir()
    for name, body in TOOLS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    probe = (
        "import sys; from hpcddp.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'torchvision'} & set(sys.modules)"
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "HPCDDP_RUNS_DIR": str(tmp_path / "runs"), "PATH": path}

    def run(*words):
        command = [sys.executable, "-c", probe, *words]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "--dry-run", "--cluster", "local"],
        ["submit", "--dry-run", "--cluster", "generic"],
        ["render", "--cluster", "generic"],
        ["status"],
        ["env", "--json"],
        ["doctor", "--cluster", "local"],
    ],
    ids=lambda words: "-".join(words),
)
def test_no_torch_is_loaded_by_the_time_a_verb_has_done_its_work(words, without_torch):
    without_torch(*words)


def test_no_torch_is_loaded_by_what_is_done_with_a_run_on_slurm(without_torch, tmp_path):
    assert "job 4711" in without_torch("submit", "--cluster", "generic", "--name", "r")
    (tmp_path / "runs/r/logs/batch.log").write_text("from the batch script\n")
    assert "running" in without_torch("status", "r")
    assert without_torch("logs", "r") == "from the batch script\n"
    assert "job 4711 cancelled" in without_torch("cancel", "r")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_in_one_sentence_what_it_is(path):
    if path.name == "__init__.py" and not path.read_text().strip():
        return
    docstring = ast.get_docstring(parsed(path))
    assert docstring, f"{path} has no docstring"
    assert len(docstring.split("\n\n")[0].split(". ")[0]) < 200


def functions(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_functions_stay_short():
    lengths = sorted(
        (node.end_lineno - node.lineno + 1, f"{path}:{node.lineno}")
        for path in MODULES
        for node in functions(path)
    )
    sizes = [length for length, _ in lengths]
    assert sizes[len(sizes) // 2] <= 11, "median"
    assert sizes[int(len(sizes) * 0.9)] < 30, "90th percentile"
    assert sizes[-1] <= 60, lengths[-1]


def test_files_stay_short():
    too_long = [str(path) for path in MODULES if path.read_text().count("\n") > 300]
    assert not too_long


def test_names_follow_the_glossary():
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.keyword):
                continue  # an argument of somebody else's function
            names = {getattr(node, attribute, None) for attribute in ("id", "arg", "attr", "name")}
            found = {name for name in names if isinstance(name, str)} & FORBIDDEN_NAMES
            assert not found, f"{path}:{node.lineno}: {found}"


def test_print_is_for_the_command_line_and_programs_started_by_scripts():
    for path in MODULES:
        if folder_of(path) in ("cli", "launch"):
            continue
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if getattr(call.func, "id", "") == "print"], path


@pytest.mark.parametrize("name", ["loop", "forward", "feed", "step_timer", "evaluate", "saving"])
def test_a_step_does_not_ask_which_mode_it_is(name):
    """Replicas answer the same calls in every mode; whoever asks for it has begun a second loop."""
    nodes = [*ast.walk(parsed(PACKAGE / "train" / f"{name}.py"))]
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert not words & {"single", "dp", "ddp"}


def test_the_last_act_of_a_batch_script_loads_no_torch(tmp_path):
    (tmp_path / "config.yaml").write_text("train: {max_steps: 1}\n")
    (tmp_path / "logs").mkdir()
    words = ["--run-dir", str(tmp_path), "--exit-code", "3"]
    probe = (
        "import sys; from hpcddp.launch.requeue import main\n"
        f"code = main({words})\n"
        "assert not {'torch', 'torchvision', 'numpy'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr


HIDES_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
READ_THEM = {PACKAGE / "cluster" / "devices.py", PACKAGE / "cluster" / "scrub.py"}


def mentions(node):
    """True for code that can set such a variable, or holds its name to do so elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = f"{node.value}=" if node.value in HIDES_DEVICES else node.value
        return any(f"{name}=" in text for name in HIDES_DEVICES)
    names = {getattr(node, attribute, None) for attribute in ("id", "attr", "arg", "name")}
    return bool(names & {"VISIBILITY_VARIABLES", *HIDES_DEVICES})


def writes(node):
    """True for a store, a deletion, a default, or a dictionary that could become an environment."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and "environ" in ast.unparse(node.value)
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", "") in {"setdefault", "update", "putenv", "unsetenv"}
    return isinstance(node, ast.Dict) and any(map(mentions, filter(None, node.keys)))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_rewrites_which_devices_a_process_may_see(path):
    """Slurm and the user decide that; two modules read it or leave it out of a new job."""
    is_wrong = writes if path in READ_THEM else mentions
    found = [ast.unparse(node) for node in ast.walk(parsed(path)) if is_wrong(node)]
    assert not found, f"{path}: {found}"
