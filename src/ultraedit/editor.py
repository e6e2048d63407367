"""One turn: tokens, capture, method, weights; and the stream of turns over a model's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ultraedit.capture import Answers, answer
from ultraedit.edits import Edit, as_edits, in_turns
from ultraedit.errors import InputError, NothingMovedError, TurnError
from ultraedit.files import (
    OWN_FOLDER,
    RECEIPT,
    RECEIPT_FORMAT,
    check_output_directory,
    staged_directory,
    write_json,
)
from ultraedit.methods import method_class
from ultraedit.methods.base import Proposal, Turn
from ultraedit.models import (
    check_saved,
    disk_errors,
    load_model,
    local_folder,
    save_model,
    save_tokenizer,
)
from ultraedit.receipt import Receipt, SiteChange, Tally, origin
from ultraedit.recipes import BENCHMARKS, default_lr, recipe_for
from ultraedit.settings import build
from ultraedit.shift import Shift
from ultraedit.sites import default_notation, resolve_sites
from ultraedit.tokens import Encoder, Example
from ultraedit.weights import Accumulate, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ultraedit.evaluation import Evaluation

_MEASURE_TOKENS = 4096


class Editor:
    """Holds a model and changes what it knows, turn after turn."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        method: str = "ultraedit",
        sites: str | list[str] | None = None,
        accumulate: Accumulate = "float32",
        chat: bool = False,
        **settings: Any,
    ) -> None:
        """Prepare a model for editing; `settings` are the method's own, such as `lr`."""
        self.model = model
        self.tokenizer = tokenizer
        self.method_name = method
        self._source = local_folder(model)
        cls = method_class(method)
        notation, defaults = defaults_for(model.config, method, sites)
        defaults = {key: defaults[key] for key in defaults if hasattr(cls.Config, key)}
        self.config = build(cls.Config, {**defaults, **settings})
        self.sites = resolve_sites(model, notation)
        self.encoder = Encoder.of(model.config, tokenizer, chat=chat)
        self.weights = Weights(self.sites, accumulate=accumulate)
        self.method = cls(self.config, model, self.sites, self.encoder)
        self.tally = Tally()

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | None = None,
        device_map: Any = None,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> Editor:
        """Load a model from a directory or hub id and prepare it; `options` are the editor's."""
        model, tokenizer = load_model(
            source,
            dtype=dtype,
            device=device,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
        )
        return cls(model, tokenizer, **options)

    @torch.inference_mode(False)
    def apply(self, edits: Iterable[Edit | Mapping[str, Any]], *, measure: bool = True) -> Receipt:
        """Apply one turn, all of it or nothing.

        With `measure` the edited prompts are asked again afterwards, which costs one forward pass.
        """
        start = time.perf_counter()
        turn = self._turn(as_edits(edits))
        self.weights.check_own()
        with _memory(self.config):
            proposal = self.method.compute_shift(turn)
            norms = self._checked_norms(proposal.shift)
            with self.weights.all_or_nothing():
                before = proposal.answers if measure else None
                if measure and before is None:
                    before = self._ask(turn.examples)
                self.weights.apply(proposal.shift)
                after = self._ask(turn.examples) if measure else None
                self.method.commit()
        receipt = _receipt(turn, proposal, before, after, self._changes(norms))
        receipt = replace(receipt, seconds=time.perf_counter() - start)
        self.tally.add(receipt)
        return receipt

    def run(
        self,
        edits: Iterable[Edit | Mapping[str, Any]],
        *,
        turn_size: int = 100,
        on_turn: Callable[[Receipt], None] = lambda receipt: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Receipt:
        """Apply a stream of edits turn by turn; `on_turn` sees the receipt of each."""
        if not isinstance(turn_size, int) or turn_size < 1:
            raise InputError(f"turn_size must be a whole number from 1, got {turn_size!r}.")
        tally = Tally()
        stopped = False
        for turn in in_turns(edits, turn_size):
            if stopped := should_stop():
                break
            receipt = self.apply(turn)
            tally.add(receipt)
            on_turn(receipt)
        if tally.turns == 0 and not stopped:
            raise InputError("There are no edits to apply.")
        self._finish()
        receipt = tally.receipt(self._changes(self.weights.total().norms()), interrupted=stopped)
        if receipt.moved is False:
            raise NothingMovedError(
                f"After {receipt.edits} edits no edited prompt has moved (largest change of an "
                f"answer's log-probability: {receipt.largest_move:.1e}). Use a larger lr "
                f"(now {getattr(self.config, 'lr', 'not set')}) or other sites."
            )
        return receipt

    def receipt(self, *, interrupted: bool = False) -> Receipt:
        """Return one receipt for every turn this editor has applied."""
        changes = self._changes(self.weights.total().norms())
        return self.tally.receipt(changes, interrupted=interrupted)

    def evaluate(self, edits: Iterable[Edit], **options: Any) -> Evaluation:
        """Ask the model every probe of the edits, as it is now."""
        from ultraedit.evaluation import evaluate

        return evaluate(self.model, edits, encoder=self.encoder, **options)

    def save(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Write an ordinary model directory, read it back, and only then put it in its place.

        Beside the model, in `ultraedit/`: the receipt, the settings, the change in float32 and what
        the method remembers. `overwrite` replaces an earlier result, and nothing else; `record` is
        added to the receipt.
        """
        check_output_directory(Path(path), overwrite=overwrite)
        staged = staged_directory(Path(path), overwrite=overwrite)
        with staged as folder, disk_errors():
            save_model(self.model, folder, self._source)
            save_tokenizer(self.tokenizer, folder)
            self._save_own(folder, {**self._record(), **(record or {})})
            check_saved(self.model, folder)

    def _record(self) -> dict[str, Any]:
        return {
            "receipt": self.receipt().to_dict(),
            "settings": self.settings(),
            "origin": self.origin(),
        }

    def _save_own(self, folder: Path, record: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        own = folder / OWN_FOLDER
        own.mkdir()
        shift = self.weights.total()
        shift.save(own / "shift.safetensors", {"base": self.weights.fingerprint(base=True)})
        state = {key: tensor.cpu() for key, tensor in self.method.state_dict().items()}
        save_file(
            {key: tensor.contiguous() for key, tensor in state.items()}, own / "state.safetensors"
        )
        write_json(own / "settings.json", record["settings"])
        names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        files = sorted(map(str, [*names, Path(OWN_FOLDER, RECEIPT)]))
        write_json(own / RECEIPT, {"format": RECEIPT_FORMAT, **record, "files": files})

    def settings(self) -> dict[str, Any]:
        """Return everything needed to do the same again."""
        return {
            "method": self.method_name,
            "sites": [site.name for site in self.sites],
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "accumulate": self.weights.accumulate,
            "chat": self.encoder.chat,
            **asdict(self.config),
        }

    def origin(self) -> dict[str, Any]:
        """Return where this model and its edits come from."""
        return {
            "model": str(self.model.config._name_or_path),
            "base_fingerprint": self.weights.fingerprint(base=True),
            "fingerprint": self.weights.fingerprint(),
            "versions": origin(),
        }

    def _turn(self, edits: list[Edit]) -> Turn:
        if not edits:
            raise InputError("A turn needs at least one edit.")
        for need in self.method.needs:
            for edit in edits:
                if not getattr(edit, need):
                    raise InputError(
                        f"{self.method_name} needs {need!r} for every edit; {edit.id!r} has none."
                    )
        return Turn(tuple(edits), tuple(self.encoder.encode_edits(edits)))

    def _checked_norms(self, shift: Shift) -> dict[str, float]:
        """Return the norms of a shift that is finite and not zero."""
        for name, change in shift.items():
            if not change.is_finite():
                raise TurnError(
                    f"The shift of {name} is not finite; nothing was changed. Use a smaller lr, or "
                    "load the model in float32."
                )
        norms = shift.norms()
        if not any(norm > 0 for norm in norms.values()):
            raise TurnError(
                "The shift is zero, so these edits would do nothing: lr is too small, or nothing "
                "that the sites do reaches the answers. Use a larger lr or other sites."
            )
        return norms

    def _ask(self, examples: tuple[Example, ...]) -> Answers:
        answers = answer(self.model, examples, max_tokens=_MEASURE_TOKENS)
        if not bool(torch.isfinite(answers.log_probs).all()):
            raise TurnError(
                "After the turn the model's answers are no longer finite; the turn was taken back. "
                "Use a smaller lr."
            )
        return answers

    def _changes(self, norms: dict[str, float]) -> dict[str, SiteChange]:
        base = self.weights.base_norms
        return {
            name: SiteChange(norm, norm / base[name] if base[name] else 0.0)
            for name, norm in norms.items()
        }

    def _finish(self) -> None:
        shift = self.method.finish()
        if shift is not None:
            with self.weights.all_or_nothing():
                self.weights.apply(shift)


def defaults_for(
    config: Any, method: str, sites: str | list[str] | None
) -> tuple[str | list[str], dict[str, Any]]:
    """Return the sites and settings to use for a model where the user named none.

    `sites` may be the name of a benchmark, for the sites the paper uses on it.
    """
    recipe = recipe_for(config)
    benchmark = sites if isinstance(sites, str) and sites in BENCHMARKS else None
    settings = {"lr": default_lr(config)} if recipe is None else recipe.settings(method)
    named = None if recipe is None else recipe.sites(method, benchmark)
    if benchmark and named is None:
        raise InputError(
            f"The paper names no sites for this model on {benchmark}; `ultraedit ls recipes` lists "
            "those it names. Leave --sites out for the default ones."
        )
    if sites is not None and not benchmark:
        return sites, settings
    if named is not None:
        return named, settings
    notation = default_notation(config)
    if notation is None:
        raise InputError(
            f"{config.model_type!r} models have no default sites yet; name them with --sites "
            "(`ultraedit inspect` lists what can be edited)."
        )
    return notation, settings


@contextmanager
def _memory(config: Any) -> Iterator[None]:
    """Say in a sentence that memory ran out, wherever it did."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, TurnError) or not is_out_of_memory(error):
            raise
        tokens = getattr(config, "micro_batch_tokens", None)
        hint = f"micro_batch_tokens (now {tokens})" if tokens else "the turn size"
        raise TurnError(
            f"Memory ran out in this turn; the model is as it was before it. Lower {hint}, or use "
            "a smaller turn size."
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether an error means that memory ran out, on whatever device."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or "can't allocate memory" in str(error)


def _receipt(
    turn: Turn,
    proposal: Proposal,
    before: Answers | None,
    after: Answers | None,
    sites: dict[str, SiteChange],
) -> Receipt:
    n_tokens = sum(len(example.answer) for example in turn.examples)
    if before is None or after is None:
        return Receipt(1, len(turn.edits), n_tokens, 0.0, sites)
    old, new = (answers.mean_by_example(answers.log_probs) for answers in (before, after))
    return Receipt(
        turns=1,
        edits=len(turn.edits),
        answer_tokens=n_tokens,
        seconds=0.0,
        sites=sites,
        efficacy_before=100 * float(before.accuracy.mean()),
        efficacy=100 * float(after.accuracy.mean()),
        log_prob_before=float(old.mean()),
        log_prob=float(new.mean()),
        largest_move=float((new - old).abs().max()),
    )
