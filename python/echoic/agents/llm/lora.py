"""LoRA by peft: learn a small addition to a frozen model instead of the model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from echoic.agents import _checks
from echoic.agents.devices import whole
from echoic.errors import ArgumentError

__all__ = ["LoRAConfig", "add_lora", "has_lora", "merged_weights"]


@dataclass(frozen=True)
class LoRAConfig:
    """Which layers get adapters, and how large: ``W + alpha / rank · B·A``."""

    #: The inner dimension of A and B.
    rank: int = 8
    alpha: float = 16.0
    #: Names of linear layers, or all of them but the output layer.
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        """Check every field."""
        _checks.whole(self, "rank")
        _checks.number(self, "alpha", above=0)
        if not self.targets:
            raise ArgumentError('targets name at least one layer, or are "all-linear"')


def add_lora(model: Any, config: LoRAConfig, seed: int = 0) -> Any:
    """Put adapters into a transformers model, freeze all else, and return the model to train.

    The layers of ``model`` itself are replaced. ``seed`` is that of A's first values; B begins with
    zeros, so that nothing changes at first.

    Raises:
        ArgumentError: If the model has adapters already, or lacks all targets.
    """
    from peft import LoraConfig, get_peft_model

    if has_lora(model):
        raise ArgumentError("the model has adapters already; add them once")
    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    # Learners compare probabilities with those of the actors, so nothing is dropped at random.
    settings = LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft uses a name that transformers warns about, since it is deprecated.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, settings)
        except ValueError as error:
            raise ArgumentError(f"no adapters for targets {config.targets!r}: {error}") from error


def has_lora(model: Any) -> bool:
    """Whether a model has adapters that can be turned off and merged."""
    return hasattr(model, "disable_adapter") and hasattr(model, "merge_and_unload")


def merged_weights(model: Any) -> dict[str, Any]:
    """Return the weights of the model without adapters, with these added; shards are whole."""
    plain = model.get_base_model()
    weights = {
        name.replace(".base_layer.", "."): whole(one).detach()
        for name, one in plain.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in plain.named_modules():
        if hasattr(layer, "get_delta_weight"):
            for adapter in layer.active_adapters:
                added = whole(layer.get_delta_weight(adapter)).detach()
                old = weights[f"{name}.weight"]
                weights[f"{name}.weight"] = (old + added).to(old.dtype)
    return weights
