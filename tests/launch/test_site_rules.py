"""What a site refuses and needs, from the profile to the script."""

import datetime
import subprocess

import pytest
from sites import GPUS, LIMITS, PLACE, TODAY, script_of

from hpcddp.errors import ConfigError
from hpcddp.launch.explain import explain, exported_warnings
from hpcddp.launch.render import option_warnings, render_script
from hpcddp.launch.request import Request, check_sizes, resolve_request
from hpcddp.launch.submission import prepare_in

H100 = GPUS.replace("resources: {", "resources: {gpu_type: h100, ")


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ("gpus-per-node", "--gpus-per-node=h100:4"),
        ("gres", "--gres=gpu:h100:4"),
        ("gpus-per-task", "--gpus-per-task=h100:1"),
    ],
)
def test_gpus_are_asked_for_in_the_way_of_the_site_and_by_type(asked, request_, line):
    script = script_of(asked(H100 + f"gpu_request: {request_}"))
    assert f"#SBATCH {line}\n" in script


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ("gpus-per-node", "--gpus-per-node=l40s:4"),
        ("gres", "--gres=gpu:l40s:4"),
        ("gpus-per-task", "--gpus-per-task=l40s:1"),
    ],
)
def test_the_type_of_gpu_that_is_typed_wins_over_the_profiles(asked, request_, line):
    text = H100 + f"gpu_request: {request_}"
    assert f"#SBATCH {line}\n" in script_of(asked(text, "resources.gpu_type=l40s"))
    assert "h100" not in script_of(asked(text, "resources.gpu_type=null"))
    kept = asked(text).resolved
    assert kept.config.resources.gpu_type == "h100"
    assert kept.sources["resources.gpu_type"] == "cluster site"


def test_a_type_of_gpu_is_refused_where_it_cannot_be_asked_for(asked):
    with pytest.raises(ConfigError, match="site is not asked for GPUs"):
        script_of(asked(GPUS + "gpu_request: implied", "resources.gpu_type=l40s"))
    with pytest.raises(ConfigError, match="the type alone"):
        script_of(asked(GPUS, "resources.gpu_type=l40s:2"))
    assert "=h100_1g.10gb:4\n" in script_of(asked(GPUS, "resources.gpu_type=h100_1g.10gb"))


def test_gpus_that_come_with_the_node_are_not_asked_for(asked):
    script = script_of(asked(GPUS + "gpu_request: implied"))
    assert "#SBATCH --ntasks-per-node=4\n" in script
    assert "gpu" not in "".join(line for line in script.splitlines() if "#SBATCH" in line)


def test_a_refused_option_is_named_with_its_reason_and_the_way_out(asked):
    text = GPUS + "forbidden: {mem: nodes are given whole}"
    with pytest.raises(ConfigError) as caught:
        script_of(asked(text, "resources.mem=8G"))
    assert "--mem is refused on site: nodes are given whole" in caught.value.message
    assert "site.local.yaml" in caught.value.message
    assert "--mem" not in script_of(asked(text))


def test_an_option_refused_for_srun_is_refused_too(asked):
    with pytest.raises(ConfigError, match="--gpu-bind is refused"):
        script_of(asked(GPUS + "forbidden: {gpu-bind: it hides}", "resources.srun.gpu_bind=none"))
    with pytest.raises(ConfigError, match="--wait is refused"):
        script_of(asked(GPUS + "forbidden: {wait: it waits}", "resources.srun.wait=0"))


def test_a_needed_account_is_asked_for_with_the_words_to_type(asked, workplace):
    text = GPUS + "account_required: true\naccount: '{project}_g'"
    request = asked(text)
    with pytest.raises(ConfigError, match=r"resources\.project=NAME"):
        check_sizes(request.config, request.profile)
    given = asked(text, environ={"HPCDDP_PROJECT": "p1"})
    assert given.config.resources.account == "p1_g"
    assert given.resolved.sources["resources.account"] == "cluster site"
    typed = asked(text, account="other")
    assert typed.config.resources.account == "other"
    check_sizes(typed.config, typed.profile)


def test_the_personal_file_fills_in_the_account(asked, workplace):
    own = workplace / ".config/hpcddp/clusters"
    own.mkdir(parents=True)
    (own / "site.local.yaml").write_text("defaults: {resources: {project: mine}}\n")
    request = asked(GPUS + "account_required: true\naccount: 'x-{project}'")
    assert request.config.resources.account == "x-mine"
    assert asked(GPUS, "resources.account=typed").config.resources.account == "typed"


def test_memory_asked_for_in_another_way_replaces_the_site_s(asked):
    text = GPUS.replace("time:", "mem_per_gpu: 60G, time:")
    assert asked(text).config.resources.mem_per_gpu == "60G"
    own = asked(text, "resources.mem=8G").config.resources
    assert (own.mem, own.mem_per_gpu) == ("8G", None)


def test_a_retired_cluster_names_its_successor(asked):
    request = asked(GPUS + "status: retired\nsuccessor: next")
    (said,) = option_warnings(request.config, request.profile, PLACE)
    assert "retired; its successor is next" in said


PAIR = (
    "sbatch: {network: {value: fast, why: the allocation must be made for it}}\n"
    "env:\n"
    "  PROTO: {value: alt, why: faster, needs: network=fast}\n"
)
EXPANDED = "  PROTO_AT: {value: '/run/$SLURM_JOB_ID', why: faster, needs: network=fast}\n"


def test_a_variable_that_needs_an_option_goes_with_it(asked):
    both = asked(GPUS + PAIR + EXPANDED)
    assert "#SBATCH --network=fast\n" in script_of(both)
    assert "export PROTO=alt" in script_of(both)
    assert 'export PROTO_AT="/run/$SLURM_JOB_ID"' in script_of(both)
    for word in ("resources.sbatch.network=null", "resources.sbatch.network=other"):
        without = asked(GPUS + PAIR + EXPANDED, word)
        assert "PROTO" not in script_of(without)
        said, _ = option_warnings(without.config, without.profile, PLACE)
        assert "PROTO=alt is not set: it needs --network=fast" in said


def test_an_option_may_name_more_than_a_variable_needs(asked):
    more = asked(GPUS + PAIR, "resources.sbatch.network='job_vni,fast'")
    assert "export PROTO=alt" in script_of(more)
    assert option_warnings(more.config, more.profile, PLACE) == ()
    part = asked(GPUS + PAIR, "resources.sbatch.network=faster")
    assert "PROTO" not in script_of(part)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("alt", ("PROTO=alt is exported, but needs --network=fast, which is not asked for.",)),
        ("other", ()),
    ],
)
def test_an_exported_variable_without_the_option_it_needs_is_warned_about(asked, value, said):
    environ = {"PROTO": value}
    without = asked(GPUS + PAIR, "resources.sbatch.network=null")
    assert option_warnings(without.config, without.profile, PLACE, environ) == said
    answer = explain(without, environ, TODAY)
    for warnings in (answer.warnings, prepare_in(without, PLACE.run_dir, environ).warnings):
        assert tuple(text for text in warnings if "PROTO" in text) == said
    (row,) = [row for row in answer.env if row.name == "PROTO"]
    assert (row.value, row.layer) == (value, "your environment")
    assert row.why == ("needs --network=fast" if said else "wins over alt of site")
    both = asked(GPUS + PAIR)
    assert option_warnings(both.config, both.profile, PLACE, environ) == ()


def run_lines(script, start, environ):
    """Run the part of a script from `start` on in bash; srun only runs its command."""
    text = script[script.index(start) : script.index("\n# The last act")]
    stand_in = (
        'srun() { while [[ "$1" == --* ]]; do shift; done; "$@"; }\n'
        f"python=echo run_dir=RUN logs=LOGS\n{text}\nexit $code\n"
    )
    return subprocess.run(
        ["bash", "-c", stand_in],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
    )


CACHE = (
    "caches: {TRITON_CACHE_DIR: {value: '$WHERE/triton-$SLURM_JOB_ID', why: not on Lustre}}\n"
    "env: {SOCKETS: {value: '/run/$SLURM_JOB_ID', why: of this job}}\n"
    "setup_task: ['export FROM_TASK=\"$SLURM_PROCID\"', 'env >\"$WHERE/env\"']\n"
)


def test_caches_are_made_and_filled_in_by_every_process(asked, tmp_path):
    script = script_of(asked(GPUS + CACHE))
    environ = {"WHERE": str(tmp_path / "node"), "SLURM_JOB_ID": "77", "SLURM_PROCID": "3"}
    done = run_lines(script, "# What every process does first", environ)
    assert done.returncode == 0, done.stderr
    assert "-m hpcddp run --run-dir" in done.stdout
    assert (tmp_path / "node/triton-77").is_dir()
    seen = (tmp_path / "node/env").read_text()
    for line in ("SOCKETS=/run/77", "FROM_TASK=3"):
        assert f"{line}\n" in seen


def test_the_user_s_own_value_of_a_cache_wins(asked, tmp_path):
    environ = {"WHERE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "mine")}
    done = run_lines(script_of(asked(GPUS + CACHE)), "# What every process", environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine").is_dir()
    assert not list(tmp_path.glob("triton*"))


def test_lines_for_each_node_run_before_the_processes_and_their_failure_stops_the_job(asked):
    script = script_of(asked(GPUS + "setup_node: [mkdir -p /tmp/x, venv]"))
    all_cores = "--cpus-per-task=32 bash -c"
    assert f"srun --nodes=2 --ntasks=2 --ntasks-per-node=1 {all_cores}" in script
    bad = script_of(asked(GPUS + "setup_node: ['exit 3']"))
    assert run_lines(bad, "read -r -d '' on_every_node", {}).returncode == 3


def test_modules_and_lines_of_the_site_come_before_everything_else(asked):
    script = script_of(asked(GPUS + "modules: [purge, load cuda]\nsetup: [echo hi]"))
    at = [script.index(text) for text in ("\nmodule purge ", "\nmodule load cuda ", "echo hi\n")]
    assert at == sorted(at)
    assert at[-1] < script.index("export PYTHONUTF8")


def test_a_module_that_cannot_be_loaded_is_named_and_the_job_goes_on(asked):
    script = script_of(asked(GPUS + "modules: [load 'a b', load cuda, load net]\nsetup: [echo hi]"))
    text = script[script.index("\nmodule ") : script.index("\n# Slurm would start")]
    module = 'module() { [ "$2" = cuda ] || return 1; }'
    done = subprocess.run(["bash", "-c", module + text], capture_output=True, text=True)
    assert done.stderr == "".join(
        f"hpcddp: `module load {name}` failed; going on without\n" for name in ("'a b'", "net")
    )
    assert (done.stdout, done.returncode) == ("hi\n", 0)


def test_one_torchrun_per_node_gets_all_cores_and_gpus_of_its_processes(asked):
    request = asked(GPUS + "launch: torchrun\ngpu_request: gpus-per-task")
    script = script_of(request)
    for line in ("--ntasks-per-node=1", "--cpus-per-task=32", "--gpus-per-task=4"):
        assert f"#SBATCH {line}\n" in script
    assert "--processes-per-node 4" in script
    assert option_warnings(request.config, request.profile, PLACE) == ()


def test_one_process_that_drives_all_gpus_of_its_node_leaves_none_idle(asked):
    request = asked(GPUS, "train.replicas=dp", nodes=1)
    assert "#SBATCH --ntasks-per-node=1\n" in script_of(request)
    assert option_warnings(request.config, request.profile, PLACE) == ()


def test_another_program_than_srun_may_start_the_nodes(asked):
    text = GPUS + "launch: torchrun\nlaunch_program: [ibrun]\nnode_rank_variable: PMI_RANK"
    script = script_of(asked(text))
    assert 'ibrun \\\n  "$python" -u -m hpcddp.launch.torchrun_node' in script
    assert "--node-rank-variable PMI_RANK" in script
    assert "\nsrun" not in script


ONE_GPU_EACH = (
    "srun: {gpus-per-task: {value: 1, why: one each, one_gpu: true}, mpi: {value: none, why: w}}\n"
)
SHAPES = {
    "one process per GPU": ((), True),
    "DataParallel": (("train.replicas=dp",), False),
    "torchrun": (("resources.launch=torchrun",), False),
    "the user's own word": (("train.replicas=dp", "resources.srun.gpus-per-task=2"), True),
}


@pytest.mark.parametrize(("words", "kept"), SHAPES.values(), ids=SHAPES)
def test_an_option_for_tasks_with_one_gpu_is_left_out_where_a_task_has_a_node(asked, words, kept):
    script = script_of(asked(GPUS + ONE_GPU_EACH, *words, nodes=1))
    assert ("--gpus-per-task=" in script) == kept
    assert "--mpi=none" in script


def test_a_users_own_program_with_all_gpus_of_its_node_is_not_kept_to_one_either(asked):
    one = asked(GPUS + ONE_GPU_EACH, "command=[echo]", "resources.processes_per_node=1")
    assert "--gpus-per-task=" not in script_of(one)


@pytest.mark.parametrize("program", ["", "launch_program: [ibrun]\nnode_rank_variable: PMI_RANK\n"])
def test_the_user_chooses_between_srun_and_torchrun(asked, program):
    text = GPUS + f"launch: torchrun\n{program}"
    assert "torchrun_node" in script_of(asked(text))
    own = asked(text, "resources.launch=srun")
    assert "\nsrun --kill-on-bad-exit=1" in script_of(own)
    assert "torchrun_node" not in script_of(own)
    assert own.profile.origins[("launch",)] == "resources.launch"
    assert "#SBATCH --ntasks-per-node=1\n" in script_of(asked(GPUS, "resources.launch=torchrun"))


@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_a_way_of_launching_that_the_site_advises_against_is_warned_of(asked, launch):
    text = GPUS + "verified_on: '2026-08'\ndiscouraged: {torchrun: it hangs there}"
    request = asked(text, f"resources.launch={launch}")
    said = option_warnings(request.config, request.profile, PLACE)
    sentence = "site: torchrun is discouraged, as it hangs there: use resources.launch=srun"
    assert said == ((f"{sentence} (profile of 2026-08).",) if launch == "torchrun" else ())


def test_another_way_of_launching_is_refused_where_there_is_none(asked):
    with pytest.raises(ConfigError, match="use srun or torchrun"):
        asked(GPUS, "resources.launch=mpirun")
    with pytest.raises(ConfigError, match="without srun"):
        asked("launcher: local\ngpu_request: none", "resources.launch=torchrun")


NAMES_AND_RULE = (
    "interface: {value: hsn0, why: fast}\nhca: {value: mlx5_0, why: near}\nenv:\n"
    "  GLOO_SOCKET_IFNAME: {value: hsn0, why: fast}\n"
    "  NCCL_SOCKET_IFNAME: {value: hsn, why: fast}\n"
    "  NCCL_IB_HCA: {value: mlx5, why: data}\n"
)


@pytest.mark.parametrize(
    ("exported", "seen"),
    [
        ({}, ["hsn0", "hsn", "mlx5", "hsn0", "mlx5_0"]),
        ({"HPCDDP_INTERFACE": "eth1"}, ["", "", "mlx5", "eth1", "mlx5_0"]),
        ({"HPCDDP_HCA": "nearest"}, ["hsn0", "hsn", "", "hsn0", "nearest"]),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, ["hsn0", "ib0", "mlx5", "hsn0", "mlx5_0"]),
        ({"GLOO_SOCKET_IFNAME": "x", "HPCDDP_INTERFACE": "y"}, ["x", "", "mlx5", "y", "mlx5_0"]),
    ],
)
def test_a_rule_of_the_users_wins_over_names_that_the_profile_gives(asked, exported, seen):
    script = script_of(asked(GPUS + NAMES_AND_RULE))
    lines = [line for line in script.splitlines() if "|| export" in line]
    names = "$GLOO_SOCKET_IFNAME,$NCCL_SOCKET_IFNAME,$NCCL_IB_HCA,$HPCDDP_INTERFACE,$HPCDDP_HCA"
    words = ["bash", "-c", "\n".join([*lines, f'printf %s "{names}"'])]
    told = subprocess.run(words, env=exported, capture_output=True, text=True).stdout
    assert told.split(",") == seen
    rows = {row.name: row for row in explain(asked(GPUS + NAMES_AND_RULE), exported, TODAY).env}
    assert [rows[name].value.replace("(not set)", "") for name in names[1:].split(",$")] == seen


def test_what_the_user_has_exported_survives_a_script_of_the_machine(workplace, tmp_path):
    machine = tmp_path / "env.sh"
    machine.write_text("export NCCL_BUFFSIZE=1 NCCL_PROTO=Simple\n")
    for name in ("gcp-a3-mega", "gcp-a3-ultra"):
        request = resolve_request(Request(cluster=name, resources={"nodes": 2}), {})
        [line] = [line for line in request.profile.setup_task if line.startswith(". ")]
        lines = "\n".join(request.profile.setup_task).replace(line, f". {machine}")
        words = ["bash", "-c", f'{lines}\necho "$NCCL_BUFFSIZE $NCCL_PROTO"']
        environ = {"PATH": "/usr/bin:/bin", "NCCL_PROTO": "a b"}
        assert (
            subprocess.run(words, env=environ, capture_output=True, text=True).stdout == "1 a b\n"
        )


def test_exported_variables_are_checked_at_submission(asked):
    profile = asked(GPUS + "env: {NCCL_ALGO: {value: Tree, why: measured}}").profile
    assert exported_warnings(profile, {"NCCL_ALGO": "Tree", "HOME": "/"}) == ()
    assert "TCP" in exported_warnings(profile, {"NCCL_IB_DISABLE": "1"})[0]


def test_names_that_nobody_reads_are_found_in_a_profile_of_ones_own(asked):
    text = (
        "env: {NCCL_SOCKET_IFNAM: {value: ib0, why: the fast one}}\n"
        "caches: {MIOPEN_USER_DB: {value: /tmp/x, why: not on Lustre}}\n"
    )
    one, two = exported_warnings(asked(GPUS + text).profile, {})
    assert "MIOPEN_USER_DB_PATH" in one
    assert "did you mean NCCL_SOCKET_IFNAME?" in two


@pytest.mark.parametrize("verified_on", ["2026-08", "2026-08-31"])
@pytest.mark.parametrize(("today", "warns"), [((2027, 8, 31), False), ((2027, 9, 1), True)])
def test_an_old_profile_is_said_to_be_old(asked, today, warns, verified_on):
    answer = explain(asked(f"{GPUS}verified_on: '{verified_on}'"), {}, datetime.date(*today))
    assert any(f"13 months ago ({verified_on})" in text for text in answer.warnings) == warns


def test_an_interface_is_passed_on_unless_the_user_has_chosen(asked):
    script = script_of(asked(GPUS + "interface: {value: 'ib*', why: the fast one}"))
    line = next(line for line in script.splitlines() if "HPCDDP_INTERFACE" in line)
    for before, after in (("", "ib*"), ("export HPCDDP_INTERFACE=eth1;", "eth1")):
        words = ["bash", "-c", f'{before}{line}; printf %s "$HPCDDP_INTERFACE"']
        assert subprocess.run(words, capture_output=True, text=True).stdout == after


def test_nodes_that_the_personal_file_asks_for_count_for_the_variants(workplace, asked):
    own = workplace / ".config/hpcddp/clusters"
    own.mkdir(parents=True)
    (own / "site.local.yaml").write_text("defaults: {resources: {nodes: 2}}\n")
    text = GPUS + "variants: {many: {when: {nodes: '2+'}}}"
    assert asked(text).profile.variants_on == ("many",)
    by_default = asked(text, nodes=None)
    assert by_default.config.resources.nodes == 2
    assert by_default.profile.variants_on == ("many",)
    assert asked(text, nodes=1).profile.variants_on == ()


def test_the_queue_and_its_resources_are_kept_for_a_resumed_run(asked):
    from hpcddp.cluster.profile import load_profile

    request = asked(GPUS + LIMITS)
    assert request.config.resources.queue == "day"
    again = load_profile("site", {}, request.config.resources)
    assert render_script(request.config, again, PLACE) == script_of(request)
