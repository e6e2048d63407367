"""What happens inside a model while it reads: features of the sites, answers at the head.

No parameter requires a gradient, so no weight gradient is ever computed; the graph starts at the
lowest site; the head sees only the positions where an answer is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ultraedit.sites import Site
from ultraedit.tokens import Batch, Example, build_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Reduction = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True)
class Features:
    """What a site saw at the answer positions, one row for each."""

    inputs: Tensor  # (m, d_in)
    grads: Tensor  # (m, d_out), of the loss with respect to the site's output


@dataclass(frozen=True, slots=True)
class Answers:
    """How a model answered some examples when the right tokens were put before it."""

    log_probs: Tensor  # (m,) of the right tokens
    predicted: Tensor  # (m,) the tokens it would have chosen
    labels: Tensor  # (m,) the right tokens
    owners: Tensor  # (m,) the number of the example each row belongs to

    @classmethod
    def join(cls, parts: Sequence[Answers]) -> Answers:
        """Put the rows of several batches together, in the order of their examples."""
        owners = torch.cat([part.owners for part in parts])
        order = torch.argsort(owners, stable=True)
        return cls(
            torch.cat([part.log_probs for part in parts])[order],
            torch.cat([part.predicted for part in parts])[order],
            torch.cat([part.labels for part in parts])[order],
            owners[order],
        )

    def mean_by_example(self, rows: Tensor) -> Tensor:
        """Average rows over the answer tokens of each example."""
        n = int(self.owners.max()) + 1
        sums = torch.zeros(n, dtype=torch.float64).index_add_(0, self.owners, rows.double())
        return sums / torch.bincount(self.owners, minlength=n)

    @property
    def accuracy(self) -> Tensor:
        """The share of right tokens of each example."""
        return self.mean_by_example(self.predicted == self.labels)


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and every flag back afterwards."""
    training = [(module, module.training) for module in model.modules()]
    grads = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        model.eval()
        for weight, _ in grads:
            weight.requires_grad_(False)
        yield
    finally:
        for module, flag in training:
            module.training = flag
        for weight, flag in grads:
            weight.requires_grad_(flag)


@torch.no_grad()
def answer(model: PreTrainedModel, examples: Sequence[Example], *, max_tokens: int) -> Answers:
    """Ask a model with the right answer put before it, token by token."""
    with frozen(model):
        batches = build_batches(examples, max_tokens=max_tokens)
        return Answers.join([_answers(_answer_logits(model, batch), batch)[0] for batch in batches])


class Capture:
    """While open, turns batches into the features of the sites; leaves nothing behind."""

    def __init__(self, model: PreTrainedModel, sites: Sequence[Site]) -> None:
        self.model = model
        self.sites = sites
        self._stack = ExitStack()
        self._inputs: dict[str, Tensor] = {}
        self._grads: dict[str, Tensor] = {}
        self._starts: list[Tensor] = []
        self._positions = torch.empty(0)

    def __enter__(self) -> Capture:
        self._stack.enter_context(frozen(self.model))
        # Models made ready for training ask for a gradient at the embeddings; it is not needed.
        embeddings = self.model.get_input_embeddings()
        self._stack.callback(embeddings.register_forward_hook(_without_grad).remove)
        for site in self.sites:
            self._stack.callback(site.module.register_forward_hook(self._hook(site.name)).remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __call__(self, batch: Batch, reduction: Reduction) -> tuple[dict[str, Features], Answers]:
        """Run one batch forward and backward."""
        self._inputs, self._grads, self._starts = {}, {}, []
        self._positions = batch.positions
        scale = _loss_scale(self.model.dtype)
        try:
            with torch.enable_grad():
                answers, loss = _answers(_answer_logits(self.model, batch), batch, reduction)
                torch.autograd.grad(loss * scale, self._starts)
            return {site.name: self._features(site.name, scale) for site in self.sites}, answers
        finally:
            self._inputs, self._grads, self._starts = {}, {}, []

    def _features(self, name: str, scale: float) -> Features:
        return Features(self._inputs[name], self._grads[name] / scale)

    def _hook(self, name: str) -> Any:
        def keep_rows(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            self._inputs[name] = self._rows(inputs[0].detach())
            if not output.requires_grad:
                output = output.detach().requires_grad_()
                self._starts.append(output)
            output.register_hook(keep_grads)
            return output

        def keep_grads(grad: Tensor) -> None:
            self._grads[name] = self._rows(grad)

        return keep_rows

    def _rows(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1, values.shape[-1])  # (b * t, d)
        rows = flat[self._positions.to(flat.device)]  # (m, d)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _without_grad(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.detach()


def input_device(model: PreTrainedModel) -> torch.device:
    """Return where a model wants its token ids; offloaded embeddings are brought to a device."""
    embeddings = model.get_input_embeddings()
    if embeddings.weight.is_meta:
        return torch.empty(0, device=getattr(embeddings._hf_hook, "execution_device", None)).device
    return embeddings.weight.device


def _answer_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits at the answer positions only, (m, vocabulary)."""
    device = input_device(model)

    def select(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        flat = inputs[0].reshape(-1, inputs[0].shape[-1])  # (b * t, d)
        return (flat[batch.positions.to(flat.device)], *inputs[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        ids, mask = batch.ids.to(device), batch.mask.to(device)
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    finally:
        handle.remove()


def _answers(logits: Tensor, batch: Batch, reduction: Reduction = "sum") -> tuple[Answers, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (m, vocabulary)
    losses = functional.cross_entropy(logits, batch.labels.to(logits.device), reduction="none")
    answers = Answers(
        -losses.detach().cpu(), logits.detach().argmax(-1).cpu(), batch.labels, batch.owners
    )
    return answers, losses.sum() if reduction == "sum" else losses.mean()


def _loss_scale(dtype: torch.dtype) -> float:
    # Half precision cannot hold gradients below 6e-8; a power of two changes nothing else.
    return 1024.0 if dtype == torch.float16 else 1.0
