"""The directory of a run: stages, figures, and a result that is replaced at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from annocoin.engine.distribution import single_process
from annocoin.engine.run_directory import (
    CHECKPOINT,
    CONFIG,
    COSTS,
    DONE,
    ENVIRONMENT,
    LOCK,
    METRICS,
    RESULT,
    RUN_FORMAT,
    Run,
    Stage,
    check_format,
    is_run,
    open_run,
    read_result,
)
from annocoin.engine.verification import verify_run
from annocoin.errors import InputError, Problems
from annocoin.files import exclusive_lock, write_bytes, write_record

NO_PROBLEMS = Problems()


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def run(tmp_path: Path, log: list[str]) -> Run:
    return Run(tmp_path / "run", single_process(), log.append)


def opened(path: Path, config: Any = None, log: Any = None) -> Any:
    lines: list[str] = []
    return open_run(path, config or {"rounds": 1}, single_process(), log=log or lines.append)


def facts(config: Any) -> dict[str, Any]:
    """What users of a run need to know, besides its networks."""
    return {"config": config, "supervision": "image", "dataset": "1", "folders": {}}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_stage_is_identified_by_name_options_and_inputs(run: Run) -> None:
    data, other = run.stage("dataset", {"images": 1}), run.stage("dataset", {"images": 2})
    stages = [
        run.stage("round 1, samples", {"a": 1, "b": 2}, data),
        run.stage("round 1, samples", {"b": 2, "a": 1}, data),
        run.stage("round 1, samples", {"a": 1, "b": 3}, data),
        run.stage("round 1, samples", {"a": 1, "b": 2}, other),
        run.stage("round 2, samples", {"a": 1, "b": 2}, data),
    ]
    assert stages[0] == stages[1]
    assert len({stage.key for stage in stages}) == 4
    assert stages[0].folder == run.path / "stages" / f"round-1-samples-{stages[0].key}"


def test_work_is_done_once(run: Run, log: list[str]) -> None:
    stage, calls = run.stage("regions", {}), []

    def work() -> dict[str, float]:
        calls.append(stage.folder.is_dir())
        return {"map": 0.25}

    assert not stage.is_done
    run.do(stage, work)
    run.do(stage, work)
    assert calls == [True]
    assert stage.is_done
    assert stage.record["figures"] == {"map": 0.25}
    assert log[0].startswith("regions: 0 s; map 0.25")
    assert log[1] == "regions: done before; map 0.25"
    assert lines_of(run.path / METRICS) == [{"stage": "regions", "map": 0.25}]
    assert set(json.loads((run.path / COSTS).read_text())) == {"regions"}


def test_interrupted_work_is_done_again(run: Run) -> None:
    stage = run.stage("regions", {})

    def interrupted() -> None:
        (stage.folder / CHECKPOINT).write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.do(stage, interrupted)
    assert not stage.is_done
    contents: list[set[str]] = []
    run.do(stage, lambda: contents.append({path.name for path in stage.folder.iterdir()}))
    assert contents == [{CHECKPOINT}], "the checkpoint is kept"
    assert not (stage.folder / CHECKPOINT).exists()
    assert stage.is_done


def test_figures_are_measured_again_with_another_truth(run: Run, log: list[str]) -> None:
    stage, values = run.stage("samples", {}), iter([0.1, 0.2, 0.3])
    run.do(stage, lambda: None)
    for digest in ("a", "a", "b", "b", "a"):
        run.measure(stage, lambda: {"map": next(values)}, digest)
    assert [line for line in log if "map" in line] == [
        f"samples: map {value}" for value in (0.1, 0.2, 0.3)
    ]
    assert stage.record["figures"] == {"map": 0.3}
    assert lines_of(run.path / METRICS) == [{"stage": "samples", "map": 0.3}]


def test_metrics_of_all_stages_are_collected_in_order(run: Run) -> None:
    for name in ("one", "two"):
        stage = run.stage(name, {})

        def work(stage: Stage = stage) -> None:
            logger = run.trainer(stage, NO_PROBLEMS).logger
            assert logger is not None
            logger.start(0)
            for step in (1, 2):
                logger.log({"step": step, "loss": 1.0})
            logger.close()

        run.do(stage, work)
    assert [(line["stage"], line["step"]) for line in lines_of(run.path / METRICS)] == [
        ("one", 1), ("one", 2), ("two", 1), ("two", 2),
    ]  # fmt: skip
    assert any((run.path / "tensorboard").rglob("events.out.tfevents.*"))


def test_the_trainer_of_a_stage_resumes_in_its_folder(run: Run) -> None:
    stage, problems = run.stage("classifier", {}), Problems(skip=True)
    trainer = run.trainer(stage, problems, workers=0)
    assert trainer.checkpointer.path == stage.folder / CHECKPOINT
    assert trainer.checkpointer.seconds == run.checkpoint_seconds
    assert (trainer.problems, trainer.workers, trainer.group) == (problems, 0, run.group)


def test_paths_inside_are_recorded_relative(run: Run, tmp_path: Path) -> None:
    assert run.relative(run.path / "stages" / "a") == "stages/a"
    assert run.relative(tmp_path / "regions") == (tmp_path / "regions").as_posix()


def test_the_result_is_written_before_the_copies_of_networks(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, the result names networks that exist: those in the stages."""
    stage = run.stage("prediction", {})
    run.do(stage, lambda: (stage.folder / "p.safetensors").write_text("weights"))
    networks = {"prediction": stage.folder / "p.safetensors"}
    run.finish(networks, **facts({"rounds": 1}))
    result = json.loads((run.path / RESULT).read_text())
    assert result["config"] == {"rounds": 1}
    assert result["stages"] == [
        {"stage": "prediction", "folder": run.relative(stage.folder), "done": True}
    ]
    assert (run.path / result["networks"]["prediction"]).read_text() == "weights"
    assert (run.path / "prediction.safetensors").read_text() == "weights"


def test_a_new_directory_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with opened(path) as run:
        assert run.path == path
        assert is_run(path)
        environment = json.loads((path / ENVIRONMENT).read_text())
        assert environment["run_format"] == RUN_FORMAT
        assert environment["torch"] == torch.__version__
        assert environment["processes"] == 1
        with pytest.raises(InputError, match="another process"), opened(path):
            pass
    with opened(path, {"rounds": 2}):
        assert json.loads((path / CONFIG).read_text()) == {"rounds": 2}


def test_a_change_of_options_is_announced(tmp_path: Path) -> None:
    path, lines = tmp_path / "run", []
    first = {"rounds": 1, "prediction": {"lr": 0.1, "steps": 3}, "scales": (1, 2)}
    with opened(path, first, lines.append) as run:
        run.finish({"prediction": path / ENVIRONMENT}, **facts(first))
    with opened(path, first, lines.append):
        pass
    assert lines == []
    with opened(path, {**first, "prediction": {"lr": 0.2, "steps": 3}}, lines.append):
        pass
    assert len(lines) == 1
    assert "holds a finished run with other options (prediction.lr 0.1 -> 0.2)" in lines[0]
    many = {name: 1 for name in "abcdef"}
    with opened(path, {**first, **many}, lines.append):
        pass
    assert "and 2 more" in lines[1]
    assert json.loads((path / RESULT).read_text())["config"]["rounds"] == 1


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / CONFIG).write_text("mine")
    for name in ("mine", "file", "config"):
        with (
            pytest.raises(InputError, match="exists and is not a run of annocoin"),
            opened(tmp_path / name),
        ):
            pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "config" / CONFIG).read_text() == "mine"
    with exclusive_lock(tmp_path / "empty" / LOCK):
        pass
    with opened(tmp_path / "empty"):  # a lock alone, or with an environment: a run that was killed
        (tmp_path / "empty" / CONFIG).unlink()
    with opened(tmp_path / "empty"):
        pass


@pytest.mark.parametrize("environment", [{"annocoin": "0.1.0"}, {"run_format": 1}, {}])
def test_runs_of_another_version_are_refused(tmp_path: Path, environment: dict[str, Any]) -> None:
    (tmp_path / CONFIG).write_text("{}")
    (tmp_path / ENVIRONMENT).write_text(json.dumps(environment))
    with pytest.raises(InputError, match=r"(0.1.0|no version\)), which this version cannot"):
        check_format(tmp_path)
    with pytest.raises(InputError, match="train anew in another folder"), opened(tmp_path):
        pass
    assert json.loads((tmp_path / ENVIRONMENT).read_text()) == environment
    assert (tmp_path / CONFIG).read_text() == "{}"


def done_stage(run: Run, calls: list[int]) -> tuple[Stage, Any]:
    """A stage with a network, arrays and metrics, and its work, which counts its calls."""
    stage = run.stage("regions", {})

    def work() -> dict[str, float]:
        calls.append(1)
        for name in ("files/a.npz", "files/b.npz", "net.safetensors", METRICS):
            if not (stage.folder / name).exists():
                write_bytes(stage.folder / name, name.encode())
        return {"map": 0.25}

    run.do(stage, work)
    return stage, work


@pytest.mark.parametrize("name", ["files/a.npz", "net.safetensors", DONE])
@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped"])
def test_a_stage_with_a_damaged_file_is_done_again(
    run: Run, log: list[str], name: str, damage: str
) -> None:
    calls: list[int] = []
    stage, work = done_stage(run, calls)
    before = {p: p.read_bytes() for p in stage.folder.rglob("*") if p.is_file()}
    file = stage.folder / name
    content = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(content[:5] if damage == "truncated" else b"\x01" + content[1:])
    run.do(stage, work)
    assert len(calls) == 2
    if (name, damage) != (DONE, "deleted"):
        line = f"regions: {name} missing or changed since the stage was done; it is done again"
        assert line in log
    costs = stage.folder / COSTS
    assert all(path.read_bytes() == content for path, content in before.items() if path != costs)
    run.do(stage, work)
    assert len(calls) == 2


@pytest.mark.parametrize("figures", [[1], {"map": "0.5"}, {"map": None}])
def test_a_record_with_wrong_figures_is_a_damaged_one(run: Run, figures: Any) -> None:
    calls: list[int] = []
    stage, work = done_stage(run, calls)
    (stage.folder / DONE).write_text(json.dumps({**stage.record, "figures": figures}))
    run.do(stage, work)
    assert len(calls) == 2
    assert stage.figures == {"map": 0.25}


def test_damaged_metrics_are_announced_and_cost_no_training(run: Run, log: list[str]) -> None:
    calls: list[int] = []
    stage, work = done_stage(run, calls)
    (stage.folder / METRICS).unlink()
    run.do(stage, work)
    assert calls == [1]
    assert "its metrics are left out" in log[-2]


def test_names_in_a_record_do_not_lead_out_of_the_stage(run: Run, tmp_path: Path) -> None:
    stage, work = done_stage(run, [])
    (tmp_path / "mine").write_text("x")
    record = {**stage.record, "files": {"../../../mine": "0"}}
    write_record(stage.folder / DONE, record)
    with pytest.raises(InputError, match="expected a name inside"):
        run.do(stage, work)
    assert (tmp_path / "mine").exists()


def test_stages_of_earlier_versions_are_used(run: Run) -> None:
    calls: list[int] = []
    stage, work = done_stage(run, calls)
    (stage.folder / DONE).write_text(json.dumps({"stage": "regions", "seconds": 3.5}))
    (stage.folder / COSTS).unlink()
    run.do(stage, work)
    run.finish({}, **facts({}))
    assert calls == [1]
    assert json.loads((run.path / COSTS).read_text()) == {"regions": 3.5}
    assert any("has no digests" in line for line in verify_run(run.path))


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"networks": []}', "\xff"])
def test_a_damaged_result_is_one_line(tmp_path: Path, content: str) -> None:
    path, lines = tmp_path / "run", []
    with opened(path) as run:
        run.finish({"prediction": path / ENVIRONMENT}, **facts({"rounds": 1}))
    (path / RESULT).write_text(content)
    with pytest.raises(InputError, match=r"run\.json: .*run `annocoin train` again"):
        read_result(path)
    assert any("run.json" in line for line in verify_run(path))
    with opened(path, log=lines.append):
        pass
    assert lines == [f"{path / RESULT}: damaged; it is written again"]


@pytest.mark.parametrize("name", [CONFIG, ENVIRONMENT])
def test_a_run_without_a_small_file_is_still_a_run(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    with opened(path) as run:
        run.do(run.stage("regions", {}), lambda: None)
    (path / name).unlink()
    assert any(name in line for line in verify_run(path))
    with opened(path):
        pass
    assert verify_run(path) == []
    (path / ENVIRONMENT).write_text("[]")
    with opened(path):
        assert verify_run(path) == []


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with opened(path):
        pass
    (path / "stages").mkdir()
    (path / "stages" / ".a.npz.0123abcd-1-x.part").write_text("half")  # of another machine
    with opened(path):
        assert list(path.rglob("*.part")) == []
