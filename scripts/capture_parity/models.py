"""The models that are captured: tiny ones of transformers and torchvision, with random weights.

Comes in: a model's name. Goes out: the model, and a function that computes its loss from inputs that are the
same each time. Called by the child that captures; transformers and torchvision are imported here alone.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

SEED = 0
_VOCABULARY, _POSITIONS, _BATCH = 512, 32, 2
_LANGUAGE: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": _POSITIONS,
}


Batch = tuple[torch.Tensor, ...]


class TrainedModel(NamedTuple):
    """A model in training mode, its batch of a seed, and the loss of a batch.

    The first dimension of each tensor of a batch is that of the samples.
    """

    module: torch.nn.Module
    batch: Callable[[int], Batch]
    loss_of: Callable[[Batch], torch.Tensor]

    def loss(self) -> torch.Tensor:
        """Return the loss of the batch that is the same each time."""
        return self.loss_of(self.batch(SEED))


def _tokens(seed: int = SEED) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(1, _VOCABULARY, (_BATCH, _POSITIONS), generator=generator),)


def _language_model(module: torch.nn.Module, **more: Any) -> TrainedModel:
    def loss_of(batch: Batch) -> torch.Tensor:
        (tokens,) = batch
        found: torch.Tensor = module(input_ids=tokens, labels=tokens, **more).loss
        return found

    return TrainedModel(module, _tokens, loss_of)


def _qwen3() -> TrainedModel:
    """Grouped attention with norms of queries and keys, written out; rotary positions, RMS norm."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _language_model(
        Qwen3ForCausalLM(Qwen3Config(**_LANGUAGE, attn_implementation="eager")), use_cache=False
    )


def _gpt2() -> TrainedModel:
    """Fused attention, layer norm, GELU by tanh, dropout, a convolution written as `addmm`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=_POSITIONS
    )
    return _language_model(GPT2LMHeadModel(config), use_cache=False)


def _t5() -> TrainedModel:
    """An encoder and a decoder, relative positions in buckets."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _language_model(T5ForConditionalGeneration(config), use_cache=False)


def _mixtral() -> TrainedModel:
    """Experts that are chosen for each token, with the loss of the choice."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_LANGUAGE, num_local_experts=4, output_router_logits=True)
    return _language_model(MixtralForCausalLM(config), use_cache=False)


def of_pictures(module: torch.nn.Module, classes: int, size: int = 64) -> TrainedModel:
    """Return a model that tells classes of pictures, `size` pixels wide and high."""

    def pictures(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        shown = torch.randn(_BATCH, 3, size, size, generator=generator)
        return shown, torch.randint(0, classes, (_BATCH,), generator=generator)

    def loss_of(batch: Batch) -> torch.Tensor:
        shown, labels = batch
        return torch.nn.functional.cross_entropy(module(shown), labels)

    return TrainedModel(module, pictures, loss_of)


def _resnet18() -> TrainedModel:
    """Convolutions and batch norm, additions and ReLU in place."""
    from torchvision.models import resnet18

    return of_pictures(resnet18(num_classes=10), 10)


def _swin() -> TrainedModel:
    """Attention in shifted windows, patches that merge, stochastic depth."""
    from torchvision.models.swin_transformer import SwinTransformer

    module = SwinTransformer(
        patch_size=[4, 4],
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        stochastic_depth_prob=0.1,
        num_classes=10,
    )
    return of_pictures(module, 10)


MODELS: dict[str, Callable[[], TrainedModel]] = {
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "t5": _t5,
    "mixtral": _mixtral,
    "resnet18": _resnet18,
    "swin": _swin,
}


def make_model(name: str) -> TrainedModel:
    """Return a model with weights that are the same each time; a generator's state is that of the seed."""
    load_torchvision()
    torch.manual_seed(SEED)
    trained = MODELS[name]()
    trained.module.train()
    torch.manual_seed(SEED + 1)
    return trained


def load_torchvision() -> None:
    """Import torchvision, also where its own operators cannot be loaded.

    A build for another device describes two of its operators although they are not there; no model here
    uses them. transformers imports it where it is installed.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for module in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", schema)
        importlib.import_module("torchvision")
