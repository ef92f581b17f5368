"""The models of the yardstick: small ones of transformers and torchvision, with random weights.

Comes in: a model's name and a dtype. Goes out: a `TrainedModel` in training mode. Called by the child of a
model; transformers and torchvision are imported here alone. Attention is written out (eager) in qwen3, t5,
bert and swin, `scaled_dot_product_attention` in gpt2 and mixtral, and `multi_head_attention_forward` in
vit. Fused attention drops no weights: a random call has no reference.
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
_CLASSES, _PIXELS = 10, 32
Batch = tuple[torch.Tensor, ...]


class TrainedModel(NamedTuple):
    """A model in training mode, its batch of a seed, and the loss of a batch.

    The first dimension of each tensor of a batch is that of the samples.
    """

    module: torch.nn.Module
    batch: Callable[[int], Batch]
    loss_of: Callable[[Batch], torch.Tensor]


def _tokens(seed: int) -> Batch:
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
    made = _language_model(GPT2LMHeadModel(config), use_cache=False)
    for module in made.module.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = 0.0
    return made


def _t5() -> TrainedModel:
    """An encoder and a decoder, relative positions in buckets, attention written out, with dropout."""
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
    module = T5ForConditionalGeneration(config)
    module.set_attn_implementation("eager")
    return _language_model(module, use_cache=False)


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


def _resnet() -> TrainedModel:
    """Convolutions, batch norm, and changes in place: a ResNet with an eighth of the channels."""
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):  # type: ignore[misc]
        def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> Any:
            return super()._make_layer(block, planes // 8, *args, **kwargs)

    module = Narrow(BasicBlock, [1, 1, 1, 1], num_classes=_CLASSES)
    module.fc = torch.nn.Linear(64, _CLASSES)
    return of_pictures(module, _CLASSES, _PIXELS)


def _densenet() -> TrainedModel:
    """Convolutions of concatenated layers."""
    from torchvision.models import DenseNet

    module = DenseNet(
        growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=_CLASSES
    )
    return of_pictures(module, _CLASSES, _PIXELS)


def _vit() -> TrainedModel:
    """Attention by torch's own module, layer norms, GELU, dropout."""
    from torchvision.models import VisionTransformer

    module = VisionTransformer(
        image_size=_PIXELS,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        dropout=0.1,
        num_classes=_CLASSES,
    )
    # The head begins with zeros, behind which nothing has a gradient.
    torch.nn.init.normal_(module.heads.head.weight, std=0.1)
    return of_pictures(module, _CLASSES, _PIXELS)


def _bert() -> TrainedModel:
    """Attention in both directions, dropout, and a head that shares the embedding's weight."""
    from transformers import BertConfig, BertForMaskedLM

    words = 512
    config = BertConfig(
        vocab_size=words,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    module = BertForMaskedLM(config)

    def batch(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(1, words, (2, 24), generator=generator),)

    def loss_of(given: Batch) -> torch.Tensor:
        (tokens,) = given
        found: torch.Tensor = module(input_ids=tokens, labels=tokens).loss
        return found

    return TrainedModel(module, batch, loss_of)


MODELS: dict[str, Callable[[], TrainedModel]] = {
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "swin": _swin,
    "gpt2": _gpt2,
    "t5": _t5,
    "resnet": _resnet,
    "densenet": _densenet,
    "vit": _vit,
    "bert": _bert,
}


def make_victim(name: str, dtype: torch.dtype) -> TrainedModel:
    """Return a model in a dtype with weights that are the same each time, in training mode."""
    load_torchvision()
    torch.manual_seed(SEED)
    made = MODELS[name]()
    made.module.to(dtype).train()

    def loss_of(batch: Batch) -> torch.Tensor:
        return made.loss_of(
            tuple(each.to(dtype) if each.is_floating_point() else each for each in batch)
        )

    return made._replace(loss_of=loss_of)


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
