"""How processes get into a container, in the way of their site."""

import subprocess

import pytest
from sites import GPUS, script_of

from hpcddp.errors import ConfigError


@pytest.mark.parametrize(
    ("container", "texts"),
    [
        (
            "{runtime: apptainer, options: [--nv], mounts: [/data]}",
            ["apptainer exec --nv --bind /shared/runs,/home/me,/data img.sif \\\n  python3 -u"],
        ),
        (
            "{runtime: pyxis, mounts: [/data]}",
            ["--container-image=img.sif", "/shared/runs:/shared/runs,/home/me:/home/me,/data:/data",
             '--container-env="$container_env"'],
        ),
        ("{runtime: shifter}", ["#SBATCH --image=img.sif", "  shifter \\\n  python3 -u"]),
        ("{runtime: environment, python: python}", ["--environment=img.sif", "  python -u"]),
        ("{runtime: wrap, wrap: [enter, '{image}']}", ["  enter img.sif \\\n  python3 -u"]),
    ],
)  # fmt: skip
def test_processes_go_into_a_container_in_the_way_of_the_site(asked, container, texts):
    text = GPUS + f"container: {container}\nenv: {{NCCL_X: {{value: '1', why: some reason}}}}"
    script = script_of(asked(text, "resources.container=img.sif"))
    assert all(part in script for part in texts)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "img.sif" not in script_of(asked(text))


def words_of_step(script, environ, start="\nsrun --kill"):
    """The words that srun would be given, by the part of a script from `start` on."""
    text = script[script.index(start) : script.index("\ncode=$?")]
    words = ["bash", "-c", 'srun() { printf "%s\\n" "$@"; }\n' + text]
    environ = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run(words, env=environ, capture_output=True, text=True).stdout.splitlines()


OWN = "/shared/runs,/home/me"
MOUNTED = {
    "pyxis": ("", "--container-mounts=/shared/runs:/shared/runs,/home/me:/home/me,{0}:{0}"),
    "apptainer": ("", f"{OWN},{{}}"),
    "wrap": (", wrap: [enter, '-B={mounts}', '{image}']", f"-B={OWN},{{}}"),
}


@pytest.mark.parametrize("runtime", MOUNTED)
def test_variables_of_the_job_are_filled_in_where_a_folder_is_mounted(asked, runtime):
    more, where = MOUNTED[runtime]
    folder = GPUS + f"container: {{runtime: {runtime}, mounts: [/run/$SLURM_JOB_ID]{more}}}"
    script = script_of(asked(folder, "resources.container=img.sif"))
    (word,) = [word for word in words_of_step(script, {"SLURM_JOB_ID": "7 7"}) if "/run" in word]
    assert word == where.format("/run/7 7")
    bad = folder.replace("$SLURM_JOB_ID", "$(id)")
    with pytest.raises(ConfigError, match=r"container\.mounts="):
        script_of(asked(bad, "resources.container=img.sif"))


# srun with pyxis: what an image sets wins, except for what --container-env names.
PYXIS = """srun() {
  while [[ "$1" == --* ]]; do [[ "$1" != --container-env=* ]] || kept="${1#*=}"; shift; done
  for one in $IMAGE; do
    [[ ",$kept," == *",${one%%=*},"* && -v "${one%%=*}" ]] || export "$one"
  done
  "$@"
}
"""


def seen_in_image(script, tmp_path, environ, image):
    """The environment of python in an image with these variables."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexec env -0\n")
    (tmp_path / "python3").chmod(0o755)
    exports = script[script.index("# The processes inherit") : script.index("# Each attempt")]
    step = script[script.index('echo "hpcddp: attempt') : script.index("\ncode=$?")]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "IMAGE": image, **environ}
    words = ["bash", "-c", PYXIS + exports + step]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    said = done.stdout.partition("\n")[2]
    return dict(one.split("=", 1) for one in said.split("\0") if "=" in one)


PYXIS_SITE = (
    "container: {runtime: pyxis}\n"
    "env: {NCCL_X: {value: site, why: some reason}, HSA_X: {value: site, why: some reason}}\n"
)


def test_variables_for_the_network_win_over_those_of_an_image(asked, tmp_path):
    script = script_of(asked(GPUS + PYXIS_SITE, "resources.container=img.sif"))
    mine = {"NCCL_DEBUG": "mine", "FI_X": "mine", "UCX_TLS": "mine", "OTHER": "mine"}
    image = [f"{name}=image" for name in (*mine, "NCCL_X", "HSA_X", "NCCL_VERSION")]
    environ = seen_in_image(script, tmp_path, mine, " ".join(image))
    assert {name: environ[name] for name in mine} == {**mine, "OTHER": "image"}
    assert (environ["NCCL_X"], environ["HSA_X"], environ["NCCL_VERSION"]) == (
        "site",
        "site",
        "image",
    )


LIBRARIES = "env: {LD_LIBRARY_PATH: {value: /opt/net, prepend: true, why: the plugin lies there}}\n"


@pytest.mark.parametrize(("image", "seen"), [("/image", "/opt/net:/image"), ("", "/opt/net:/host")])
def test_a_folder_goes_in_front_of_those_that_an_image_has(asked, tmp_path, image, seen):
    request = asked(GPUS + LIBRARIES + "container: {runtime: pyxis}", "resources.container=i.sif")
    image = f"LD_LIBRARY_PATH={image}" if image else "OTHER=1"
    environ = seen_in_image(script_of(request), tmp_path, {"LD_LIBRARY_PATH": "/host"}, image)
    assert environ["LD_LIBRARY_PATH"] == seen


@pytest.mark.parametrize("runtime", ["pyxis", "environment", "apptainer", "none"])
def test_a_folder_goes_in_front_in_the_batch_script_where_no_shell_is_in_an_image(asked, runtime):
    words = ("resources.container=img.sif",) if runtime != "none" else ()
    script = script_of(asked(GPUS + f"{LIBRARIES}container: {{runtime: {runtime}}}", *words))
    before, _, after = script.partition("export LD_LIBRARY_PATH=/opt/net")
    assert ("in_every_process" in before) == (runtime in ("pyxis", "environment"))
    assert "LD_LIBRARY_PATH=" not in before + after


def test_a_container_where_the_profile_knows_no_way_is_refused(asked):
    with pytest.raises(ConfigError, match="does not say how"):
        script_of(asked(GPUS, "resources.container=img.sif"))


def test_what_holds_only_in_a_container_is_left_out_without_one(asked):
    text = GPUS + (
        "container: {runtime: wrap, wrap: [enter, -B, '{mounts}', '{image}'], mounts: [/data]}\n"
        "variants: {in_container: {when: {container: true}, modules: [load bindings]}}\n"
    )
    assert "bindings" not in script_of(asked(text))
    inside = script_of(asked(text, "resources.container=img.sif"))
    assert "\nmodule load bindings " in inside
    assert "enter -B /shared/runs,/home/me,/data img.sif" in inside
