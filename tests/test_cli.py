"""The command line as a new user tries it: good files, bad files, and what is left behind."""

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tiny_models import build_tiny
from tokenizers_made_here import gpt2_like
from ultraedit import models
from ultraedit.cli.app import main

GOOD = [
    {
        "prompt": f"The capital of country {n} is",
        "target": f"city {n}",
        "rephrasings": [f"Country {n} is governed from"],
        "unrelated": [{"prompt": f"The river of country {n} is", "answer": "the Nile"}],
        "personas": [f"As a poet: the capital of country {n} is"],
        "reasoning": [{"prompt": f"People in the capital of {n} say", "answer": "hello"}],
    }
    for n in range(6)
]
FAST = ["--lr", "0.05", "--turn-size", "3"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Llama with a tokenizer, on disk."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    tokenizer = gpt2_like()
    tiny = build_tiny("llama")
    tiny.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tiny.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory with a good file of edits in it."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "edits.jsonl", GOOD)
    (tmp_path / "theirs" / "ultraedit").mkdir(parents=True)
    (tmp_path / "theirs" / "thesis.tex").write_text("years of work")
    return tmp_path


@pytest.fixture
def ultraedit(monkeypatch, capsys):
    """Run the command; return exit code, standard output and standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ultraedit", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code or 0
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def everything_in(folder: Path) -> dict:
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*"))}


def test_edit_writes_a_model_that_plain_transformers_loads(model, place, ultraedit):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    code, out, _ = ultraedit(
        "edit", model, "edits.jsonl", "--out", "out", *FAST, "--json", "r.json"
    )
    assert code == 0
    assert "6 edits" in out
    loaded = AutoModelForCausalLM.from_pretrained("out")
    AutoTokenizer.from_pretrained("out")
    before = AutoModelForCausalLM.from_pretrained(model)
    moved = {
        n
        for (n, a), b in zip(before.named_parameters(), loaded.parameters(), strict=True)
        if not torch.equal(a, b)
    }
    result = json.loads(Path("r.json").read_text())
    assert moved == {f"{site}.weight" for site in result["settings"]["sites"]}
    for family in ("efficacy", "generalization", "specificity", "personas", "reasoning"):
        assert set(result[family]) >= {"token_accuracy", "exact_match", "generated_match"}
        assert all(0 <= value <= 100 for value in result[family].values())
    assert result["receipt"]["log_prob"] > result["receipt"]["log_prob_before"]
    own = sorted(path.name for path in (place / "out" / "ultraedit").iterdir())
    assert own == ["receipt.json", "settings.json", "shift.safetensors", "state.safetensors"]


def test_what_is_saved_is_the_base_plus_the_change_beside_it(model, place, ultraedit):
    from transformers import AutoModelForCausalLM

    from ultraedit.shift import Shift

    ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--no-evaluate")
    before, after = (AutoModelForCausalLM.from_pretrained(source) for source in (model, "out"))
    for site, change in Shift.load(Path("out/ultraedit/shift.safetensors")).items():
        expected = before.get_submodule(site).weight + change.matrix
        torch.testing.assert_close(after.get_submodule(site).weight, expected)


def test_evaluate_gives_the_scores_that_edit_gave(model, place, ultraedit):
    ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--json", "edit.json")
    code, out, _ = ultraedit(
        "evaluate",
        "out",
        "edits.jsonl",
        "--base",
        model,
        "--json",
        "r.json",
        "--answers",
        "a.jsonl",
    )
    assert code == 0
    assert "teacher forcing" in out
    edited, evaluated = (json.loads(Path(name).read_text()) for name in ("edit.json", "r.json"))
    for family in ("efficacy", "generalization", "specificity", "personas", "reasoning"):
        assert edited[family] == evaluated[family]
    answers = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert len(answers) == 5 * len(GOOD)


def test_json_on_standard_output_is_json_alone(model, place, ultraedit):
    code, out, err = ultraedit("evaluate", model, "edits.jsonl", "--json", "-", "--no-generate")
    assert code == 0
    assert json.loads(out)["efficacy"]["generated_match"] is None
    assert "Scores" in err


def test_a_curve_has_a_point_after_every_n_turns(model, place, ultraedit):
    ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--every", 1, "--json", "r.json")
    curve = json.loads(Path("r.json").read_text())["curve"]
    assert [point["edits"] for point in curve] == [3, 6]


def test_bad_rows_are_listed_and_the_rest_is_edited_when_asked(model, place, ultraedit):
    write_rows(
        place / "edits.jsonl", [GOOD[0], {"prompt": "x"}, *GOOD[1:], {"prompt": "", "target": "y"}]
    )
    code, out, _ = ultraedit(
        "edit", model, "edits.jsonl", "--out", "out", *FAST, "--skip-bad-rows", "--json", "r.json"
    )
    assert code == 0
    assert "edits.jsonl:2: 'target' is missing" in out
    file = json.loads(Path("r.json").read_text())["edits_file"]
    assert (file["edits"], file["left_out"]) == (6, 2)
    assert file["left_out_rows"][1] == "edits.jsonl:8: 'prompt' is empty"


def test_a_dry_run_checks_and_writes_nothing(model, place, ultraedit):
    before = everything_in(place)
    code, out, _ = ultraedit("edit", model, "edits.jsonl", "--out", "new/out", "--dry-run")
    assert code == 0
    assert "6 edits, nothing was changed" in out
    assert everything_in(place) == before


def test_an_earlier_result_is_replaced_only_when_asked(model, place, ultraedit):
    assert ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--no-evaluate")[0] == 0
    first = everything_in(place)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert (code, everything_in(place)) == (2, first)
    assert "--overwrite" in err
    words = ("--lr", "0.02", "--overwrite", "--no-evaluate")
    assert ultraedit("edit", model, "edits.jsonl", "--out", "out", *words)[0] == 0
    assert everything_in(place) != first
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_an_edited_model_is_edited_again(model, place, ultraedit):
    ultraedit("edit", model, "edits.jsonl", "--out", "one", *FAST, "--no-evaluate")
    assert ultraedit("edit", "one", "edits.jsonl", "--out", "two", *FAST, "--no-evaluate")[0] == 0
    assert json.loads(Path("two/ultraedit/receipt.json").read_text())["origin"]["model"] == "one"


def corrupt_model(place: Path, model: Path, change) -> Path:
    copy = place / "damaged"
    shutil.copytree(model, copy)
    change(copy)
    return copy


def _truncate(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _rename_a_weight(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.other"] = weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})


def _config(copy: Path, **values) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **values}))


BAD_MODELS = {
    "cut short": (_truncate, "cannot be loaded"),
    "a weight renamed": (_rename_a_weight, "missing"),
    "no weights": (lambda c: (c / "model.safetensors").unlink(), "no weights"),
    "no configuration": (lambda c: (c / "config.json").unlink(), "no config.json"),
    "a broken configuration": (lambda c: (c / "config.json").write_text("{"), "cannot be read"),
    "another shape": (lambda c: _config(c, intermediate_size=40), "another shape"),
    "quantised": (
        lambda c: _config(c, quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantised",
    ),
    "an encoder": (
        lambda c: _config(c, model_type="t5", is_encoder_decoder=True),
        "encoder-decoder",
    ),
    "an unknown type": (lambda c: _config(c, model_type="nonesuch"), "cannot be read"),
    "a broken tokenizer": (lambda c: (c / "tokenizer.json").write_text("{"), "tokenizer"),
}


@pytest.mark.parametrize("kind", BAD_MODELS)
def test_a_bad_model_is_refused_in_a_sentence(kind, model, place, ultraedit):
    change, words = BAD_MODELS[kind]
    damaged = corrupt_model(place, model, change)
    before = everything_in(place)
    code, _, err = ultraedit("edit", damaged, "edits.jsonl", "--out", "out", *FAST)
    assert (code, everything_in(place)) == (2, before)
    assert words in err
    assert "Traceback" not in err


def _raw(content: bytes, name: str = "bad.jsonl"):
    return lambda place: ((place / name).write_bytes(content), name)[1]


def _row(**values):
    return _raw(json.dumps({"prompt": "The sky is", "target": "blue", **values}).encode())


ONE = json.dumps(GOOD[0]).encode()
BAD_FILES = {
    "no such file": (lambda place: "nothing.jsonl", "There is no file"),
    "a directory": (lambda place: ".", "is not a file"),
    "another ending": (_raw(ONE, "edits.txt"), "ends in .jsonl"),
    "nothing in it": (_raw(b""), "holds no edits"),
    "wrong JSON": (_raw(ONE + b'\n{"prompt": "a", target: 1}'), "bad.jsonl:2: not JSON"),
    "a JSON array in JSONL": (_raw(b"[" + ONE + b"]"), "expected an object"),
    "an open array": (_raw(b"[" + ONE, "bad.json"), "never closed"),
    "UTF-16": (_raw(ONE.decode().encode("utf-16")), "save it as UTF-8"),
    "bytes that are no text": (
        _raw(ONE + b'\n{"prompt": "\xff", "target": "a"}'),
        "bad.jsonl:2: byte",
    ),
    "no target": (_raw(b'{"prompt": "a"}'), "'target' is missing"),
    "an empty target": (_row(target=""), "'target' is empty"),
    "a blank prompt": (_row(prompt=" \t"), "'prompt' is empty"),
    "a number for a target": (_row(target=7), "not int"),
    "wrong token ids": (_row(target_ids=[1, -2]), "token ids"),
    "a token outside the vocabulary": (_row(target_ids=[10**6]), "vocabulary"),
    "more than the context": (_row(prompt="word " * 200), "context"),
    "rephrasings of another type": (_row(rephrasings=7), "'rephrasings' must be a list"),
    "an unrelated pair without answer": (_row(unrelated=[{"prompt": "a"}]), "pairs of"),
    "a line of 10 MB": (_raw(ONE + b"\n" + b"x" * 10_000_000), "bad.jsonl:2: the line is longer"),
    "an id twice": (
        _raw(b'{"id": 1, "prompt": "a", "target": "b"}\n' * 2),
        "bad.jsonl:2: the id '1'",
    ),
    "a CSV without target": (_raw(b"prompt,answer\na,b\n", "bad.csv"), "no column 'target'"),
    "a CSV row cut short": (_raw(b"prompt,target\na\n", "bad.csv"), "bad.csv:2: 1 cells"),
    "no Parquet": (_raw(b"PAR1 not really", "bad.parquet"), "cannot be read as Parquet"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("verb", ["edit", "evaluate"])
def test_a_bad_file_is_refused_in_a_sentence(verb, kind, model, place, ultraedit):
    make, words = BAD_FILES[kind]
    name = make(place)
    before = everything_in(place)
    more = ["--out", "out", *FAST] if verb == "edit" else []
    code, _, err = ultraedit(verb, model, name, *more, "--json", "r.json")
    assert (code, everything_in(place)) == (2, before)
    assert words in err
    assert "Traceback" not in err


GOOD_FILES = {
    "a byte order mark": (b"\xef\xbb\xbf" + ONE, "good.jsonl"),
    "other line ends": (ONE + b"\r\n\r\n" + ONE + b"\r\n", "good.jsonl"),
    "an array": (b"[\n  " + ONE + b"\n]\n", "good.json"),
    "a CSV": ("prompt,target\r\nThe sky is,grün\r\n".encode(), "good.csv"),
    "a CSV with a mark": (b"\xef\xbb\xbfprompt,target\nThe sky is,green\n", "good.csv"),
}


@pytest.mark.parametrize("kind", GOOD_FILES)
def test_an_unusual_but_good_file_is_taken(kind, model, place, ultraedit):
    content, name = GOOD_FILES[kind]
    (place / name).write_bytes(content)
    code, _, err = ultraedit("edit", model, name, "--out", "out", *FAST, "--no-evaluate")
    assert (code, err) == (0, "")


BAD_WORDS = {
    "an unknown site": (["--sites", "layers.9.mlp.down_proj"], "No site matches"),
    "a range backwards": (["--sites", "[3-1].mlp.up_proj"], "no range of layers"),
    "no layer but a block": (["--sites", "model.layers.0.mlp"], "cannot be edited"),
    "the head": (["--sites", "lm_head"], "cannot be edited"),
    "an unknown method": (["--method", "ultraedti"], "Did you mean 'ultraedit'"),
    "an unknown flag": (["--learning-rate", "1"], "No such option"),
    "a negative lr": (["--lr", "-1"], "positive"),
    "an lr that is no number": (["--lr", "fast"], "must be a number"),
    "lr not a number": (["--lr", "nan"], "positive"),
    "another choice": (["--statistics", "mine"], "'exact' or 'authors'"),
    "turns of none": (["--turn-size", "0"], "turn-size"),
    "an unknown precision": (["--dtype", "float33"], "There is no dtype"),
    "an unknown device": (["--device", "toaster"], "toaster"),
    "a chat template that is not there": (["--chat"], "chat template"),
    "a folder that is not there": (["--json", "no/where.json"], "There is no folder"),
    "a directory for a file": (["--json", "."], "is a directory"),
    "the edits file as the result": (["--out", "edits.jsonl"], "is no plain directory"),
    "below a file": (["--out", "edits.jsonl/out"], "cannot be written"),
    "the working directory": (["--out", "."], "no name"),
    "the edits as the JSON": (["--json", "edits.jsonl"], "needed for something else"),
    "two places": (["--device", "cpu", "--device-map", "auto"], "not both"),
    "a foreign directory": (["--out", "theirs", "--overwrite"], "was not written by ultraedit"),
}


@pytest.mark.parametrize("kind", BAD_WORDS)
def test_a_bad_option_is_refused_in_a_sentence(kind, model, place, ultraedit):
    words, expected = BAD_WORDS[kind]
    before = everything_in(place)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *words)
    assert (code, everything_in(place)) == (2, before)
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize("source", ["no/such/folder", "./nothing", "edits.jsonl", "some-model"])
def test_a_model_that_is_not_there_is_refused_at_once(source, place, ultraedit):
    code, _, err = ultraedit("edit", source, "edits.jsonl", "--out", "out")
    assert code == 2
    assert source in err


def test_a_run_that_moves_nothing_is_no_success(model, place, ultraedit):
    before = everything_in(place)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", "--lr", "1e-12")
    assert (code, everything_in(place)) == (3, before)
    assert "larger lr" in err


def test_edits_that_wreck_the_model_are_taken_back(model, place, ultraedit):
    before = everything_in(place)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", "--lr", "1e38")
    assert (code, everything_in(place)) == (3, before)
    assert "smaller lr" in err


def test_turns_before_one_that_fails_are_saved(model, place, ultraedit, monkeypatch):
    from ultraedit.editor import Editor
    from ultraedit.errors import TurnError

    apply = Editor.apply

    def fail_later(self, edits, **options):
        if self.tally.turns == 1:
            raise TurnError("The second turn failed.")
        return apply(self, edits, **options)

    monkeypatch.setattr(Editor, "apply", fail_later)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert code == 3
    assert "The second turn failed. The finished turns are saved." in err
    receipt = json.loads(Path("out/ultraedit/receipt.json").read_text())
    assert receipt["receipt"]["edits"] == 3
    assert receipt["failure"] == "The second turn failed."


def test_ctrl_c_stops_between_turns_and_saves(model, place, ultraedit, monkeypatch):
    from ultraedit.editor import Editor

    apply = Editor.apply

    def interrupted(self, edits, **options):
        signal.raise_signal(signal.SIGINT)
        return apply(self, edits, **options)

    monkeypatch.setattr(Editor, "apply", interrupted)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert code == 130
    assert "the edits that were done are saved" in err
    receipt = json.loads(Path("out/ultraedit/receipt.json").read_text())["receipt"]
    assert (receipt["edits"], receipt["interrupted"]) == (3, True)


def test_a_file_that_changes_during_the_run_ends_it_and_says_so(
    model, place, ultraedit, monkeypatch
):
    from ultraedit.editor import Editor

    apply = Editor.apply

    def rewrite(self, edits, **options):
        write_rows(place / "edits.jsonl", GOOD[:2])
        return apply(self, edits, **options)

    monkeypatch.setattr(Editor, "apply", rewrite)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert code == 3
    assert "was changed while it was in use" in err
    assert json.loads(Path("out/ultraedit/receipt.json").read_text())["edits_file"]["edits"] == 6


def test_ctrl_c_in_the_last_evaluation_saves_the_edits(model, place, ultraedit, monkeypatch):
    from ultraedit.editor import Editor

    evaluate = Editor.evaluate

    def interrupted(self, edits, **options):
        if self.tally.turns:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, edits, **options)

    monkeypatch.setattr(Editor, "evaluate", interrupted)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert code == 130
    assert "are saved" in err
    assert json.loads(Path("out/ultraedit/receipt.json").read_text())["receipt"]["edits"] == 6


def test_stopping_before_anything_was_done_leaves_nothing(model, place, ultraedit, monkeypatch):
    before = everything_in(place)
    monkeypatch.setattr(models, "load_skeleton", lambda *a, **k: signal.raise_signal(signal.SIGINT))
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert (code, everything_in(place)) == (130, before)
    assert "nothing was written" in err


def test_a_ctrl_c_that_a_library_swallows_is_remembered(model, place, ultraedit, monkeypatch):
    load_skeleton = models.load_skeleton

    def swallowing(*words, **options):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return load_skeleton(*words, **options)

    before = everything_in(place)
    monkeypatch.setattr(models, "load_skeleton", swallowing)
    code, _, _ = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST)
    assert (code, everything_in(place)) == (130, before)


def test_a_change_larger_than_the_weight_is_pointed_out(model, place, ultraedit):
    words = ("--lr", "1e4", "--no-evaluate")
    _, out, _ = ultraedit("edit", model, "edits.jsonl", "--out", "out", *words)
    assert "of the model can be left" in out


def test_nobody_listening_does_not_end_the_work(model, place):
    command = [sys.executable, "-m", "ultraedit", "edit", str(model), "edits.jsonl", "--out", "out"]
    done = subprocess.run(
        f"{shlex.join([*command, *FAST, '--no-evaluate'])} | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        check=False,
    )
    assert done.returncode == 0
    assert (place / "out" / "config.json").exists()


def test_a_terminal_without_these_letters_gets_others(place):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "ultraedit", "ls"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"ultraedit" in done.stdout


def test_what_appears_at_the_place_during_the_run_stays(model, place, ultraedit, monkeypatch):
    from ultraedit.editor import Editor

    apply = Editor.apply

    def occupy(self, edits, **options):
        (place / "out").mkdir(exist_ok=True)
        (place / "out" / "precious").touch()
        return apply(self, edits, **options)

    monkeypatch.setattr(Editor, "apply", occupy)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--no-evaluate")
    assert code == 4
    assert "out-1 instead" in err
    assert (place / "out" / "precious").exists()
    assert (place / "out-1" / "config.json").exists()


def test_a_full_disk_leaves_nothing_behind(model, place, ultraedit, monkeypatch):
    from transformers import PreTrainedModel

    def full(self, folder, **options):
        Path(folder, "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = everything_in(place)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "deep/out", *FAST)
    assert (code, everything_in(place)) == (4, before)
    assert "No space left on device" in err


def test_too_little_space_is_noticed_before_the_work(model, place, ultraedit, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out")
    assert code == 2
    assert "are free there" in err


def test_a_file_that_reads_back_differently_is_not_kept(model, place, ultraedit, monkeypatch):
    before = everything_in(place)
    monkeypatch.setattr(models, "_same_bits", lambda left, right: False)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out", *FAST, "--no-evaluate")
    assert (code, everything_in(place)) == (4, before)
    assert "reads back differently" in err


def test_an_unexpected_error_is_a_sentence_too(model, place, ultraedit, monkeypatch):
    monkeypatch.setattr(models, "load_skeleton", lambda *a, **k: 1 / 0)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out")
    assert code == 1
    assert "ULTRAEDIT_DEBUG" in err
    assert "Traceback" not in err


def test_memory_that_runs_out_while_loading_is_the_machines_failure(
    model, place, ultraedit, monkeypatch
):
    def full(*words, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(models, "load_skeleton", full)
    code, _, err = ultraedit("edit", model, "edits.jsonl", "--out", "out")
    assert code == 4
    assert "ultraedit plan" in err


def test_inspect_lists_every_site_and_marks_the_default_ones(model, place, ultraedit):
    code, out, _ = ultraedit("inspect", model, "--json", "r.json")
    assert code == 0
    rows = json.loads(Path("r.json").read_text())["sites"]
    assert all(row["site"] in out for row in rows)
    assert 0 < sum(row["default"] for row in rows) < len(rows)
    assert {"site": "model.layers.0.mlp.up_proj", "d_in": 32, "d_out": 48, "default": False} in rows


def test_plan_needs_no_weights(model, place, ultraedit):
    (place / "config").mkdir()
    shutil.copy(model / "config.json", place / "config")
    code, out, _ = ultraedit("plan", "config", "--edits", 1000, "--json", "r.json")
    assert code == 0
    assert "peak on the device" in out
    plan = json.loads(Path("r.json").read_text())
    assert plan["turns"] == 10
    assert plan["peak"] == plan["weights"] + plan["masters"] + plan["turn"]


@pytest.mark.parametrize("what", ["methods", "settings", "architectures", "recipes", "metrics"])
def test_ls_lists_what_there_is(what, place, ultraedit):
    code, out, _ = ultraedit("ls", what)
    assert code == 0
    assert len(out.splitlines()) > 3


def test_ls_of_something_else_names_what_there_is(place, ultraedit):
    code, _, err = ultraedit("ls", "method")
    assert code == 2
    assert "Did you mean 'methods'" in err


def test_help_imports_no_heavy_library():
    code = (
        "import sys; sys.argv = ['ultraedit', 'edit', '--help']\n"
        "from ultraedit.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('torch', 'transformers', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--statistics" in done.stdout
