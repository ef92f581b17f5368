"""Programs with models of transformers, made from small configurations with random weights."""

from collections.abc import Callable
from typing import Any

import torch

from scripts.honest.programs import Results, Training

MODEL_PROGRAMS: dict[str, Callable[[], Training]] = {}
_SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def model_program(make: Callable[[], Training]) -> Callable[[], Training]:
    """Register a program."""
    MODEL_PROGRAMS[make.__name__] = make
    return make


def _trained(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], rate: float = 1e-3
) -> Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def train() -> Results:
        losses = []
        for _ in range(2):
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *(value.detach().clone() for value in model.state_dict().values())]

    return train


def _words(rows: int = 2, length: int = 10) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, 64, (rows, length))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


@model_program
def llama_generation() -> Training:
    """`generate` with a cache of keys, greedy, padded on the left."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**_SMALL)).eval()
    batch = _words()
    del batch["labels"]

    def train() -> Results:
        found = model.generate(
            **batch,
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        return [found.sequences, *found.scores]

    return train


@model_program
def gpt2_trainer() -> Training:
    """The Trainer of transformers, with accumulation and a schedule."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    )
    tokens = torch.randint(3, 64, (8, 10))
    rows = [{"input_ids": row, "labels": row} for row in tokens]

    def train() -> Results:
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                max_steps=2,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                seed=5,
                logging_strategy="no",
            )
            done = Trainer(model=model, args=arguments, train_dataset=rows).train()
        state = model.state_dict().values()
        return [torch.tensor(done.training_loss), *(value.detach().clone() for value in state)]

    return train


@model_program
def mixtral_experts() -> Training:
    """Experts that are chosen for each token, with the loss of the choice."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_SMALL, num_local_experts=4, output_router_logits=True)
    return _trained(MixtralForCausalLM(config), _words())


@model_program
def mamba() -> Training:
    """A state-space model: a causal convolution and a scan."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=64, hidden_size=32, state_size=8, num_hidden_layers=2)
    tokens = torch.randint(3, 64, (2, 9))
    return _trained(MambaForCausalLM(config), {"input_ids": tokens, "labels": tokens})


@model_program
def t5() -> Training:
    """An encoder and a decoder, relative positions in buckets."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _trained(T5ForConditionalGeneration(config), _words())


@model_program
def vit() -> Training:
    """Pictures in patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        num_labels=5,
    )
    batch = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 4])}
    return _trained(ViTForImageClassification(config), batch)


@model_program
def lora_by_peft() -> Training:
    """Adapters of peft in a model of transformers, and a step of them alone."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**_SMALL, attn_implementation="eager"))
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    return _trained(adapted, _words(), 1e-2)


@model_program
def detection_by_queries() -> Training:
    """Queries that are matched with boxes by cost, classes and two losses of boxes (DETR's form)."""
    from scipy.optimize import linear_sum_assignment

    features = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
    )
    decoder = torch.nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    queries, classes, boxes = (
        torch.nn.Embedding(6, 16),
        torch.nn.Linear(16, 4),
        torch.nn.Linear(16, 4),
    )
    model = torch.nn.ModuleList([features, decoder, queries, classes, boxes])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pictures = torch.randn(2, 3, 8, 8)
    targets = [(torch.tensor([0, 2]), torch.rand(2, 4)), (torch.tensor([1]), torch.rand(1, 4))]

    def train() -> Results:
        memory = features(pictures).flatten(2).transpose(1, 2)
        h = decoder(queries.weight.unsqueeze(0).expand(2, -1, -1), memory)
        scores, places = classes(h), boxes(h).sigmoid()
        loss = torch.zeros(())
        for row, (labels, wanted) in enumerate(targets):
            cost = -scores[row].softmax(-1)[:, labels] + torch.cdist(places[row], wanted, p=1)
            mine, theirs = map(torch.as_tensor, linear_sum_assignment(cost.detach().numpy()))
            goal = torch.full((6,), 3)
            goal[mine] = labels[theirs]
            weight = torch.tensor([1.0, 1.0, 1.0, 0.1])
            loss = loss + torch.nn.functional.cross_entropy(scores[row], goal, weight)
            loss = loss + torch.nn.functional.l1_loss(places[row][mine], wanted[theirs])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        state = model.state_dict().values()
        return [loss.detach(), *(value.detach().clone() for value in state)]

    return train
