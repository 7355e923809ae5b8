# SPDX-License-Identifier: BSD-2-Clause
"""Set-up of the commands: what is missing is named, the exit status is the agreed one."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim import env


def test_missing_is_seen():
    packages = {"a": "no-such-program-at-all", "b": "no/such/header.h", "c": ".no_such_module", "sh": "sh", "json": ".json"}
    assert env.missing(packages) == ["a", "b", "c"]
    assert env.install({"sh": "sh"}) == []


def test_need_lists_and_exits_3(monkeypatch, capsys):
    monkeypatch.setattr(env, "_privilege", lambda: None)
    with pytest.raises(SystemExit) as stop:
        env.need({"first": "no-such-program", "second": "no-other-program", "sh": "sh"})
    assert stop.value.code == env.MISSING == 3
    assert "missing packages: first second\n" in capsys.readouterr().err


def test_every_package_has_a_probe():
    assert set(env.PACKAGES) == set(env.PROBES)
    with pytest.raises(KeyError):
        env.missing(["no-such-package"])


def test_stamp_follows_setup_and_constraints(monkeypatch, tmp_path):
    for folder in ("bin",):
        (tmp_path / ".venv" / folder).mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "setup.py").write_text("first")
    (tmp_path / "constraints.txt").write_text("first")
    for name, value in (("ROOT", tmp_path), ("VENV", tmp_path / ".venv"), ("STAMP", tmp_path / ".venv" / "stamp")):
        monkeypatch.setattr(env, name, value)
    assert not env._ready()
    env._write_stamp(["make"])
    assert env._ready() and json.loads(env.STAMP.read_text())["packages"] == ["make"]
    for name in ("setup.py", "constraints.txt"):
        (tmp_path / name).write_text("second")
        assert not env._ready()
        (tmp_path / name).write_text("first")
        assert env._ready()


def test_a_new_environment_is_not_made_by_the_old_one(monkeypatch, tmp_path):
    """A .venv that was moved or copied is removed before a new one is made: its own interpreter cannot make it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(env, "VENV", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert tmp_path not in Path(env._interpreter()).parents


@pytest.mark.parametrize("arguments, status", [
    (["--no-such-option"],                                      env.BAD_ARGUMENT),
    (["-k", "no_such_test", "test/test_env.py"],                env.FAILED),
    (["test/test_env.py::test_every_package_has_a_probe"],      env.OK),
    (["--seed", "seven", "test/test_env.py"],                   env.BAD_ARGUMENT),
])
def test_status_of_test_run(arguments, status):
    done = subprocess.run([str(env.ROOT / "test" / "run"), *arguments], capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))})
    assert done.returncode == status, done.stdout + done.stderr


def test_script_finds_the_environment(tmp_path):
    """A script starts from any folder, in the clone's packages, and its own folder shadows nothing."""
    script = env.ROOT / "build" / "probe_of_test_env.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("import pathlib, sys; sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))\n"
                      "from sim import env; env.enter()\n"
                      "import migen, roce_soc, shutil; print(roce_soc.__file__, str(pathlib.Path(__file__).parent) in sys.path)\n")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(env.ROOT / "roce_soc" / "__init__.py"), "False"]
