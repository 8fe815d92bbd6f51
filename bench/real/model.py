"""Makes, in a folder: tiny, a Llama of random weights with its tokenizer; lora/a1 to lora/a5, adapters of rank 4 for it; and
lora/big, one of rank 16, which is too large for a server that takes rank 8. Nothing is fetched."""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

root = pathlib.Path(sys.argv[1])
hidden, layers, heads, kv_heads, head, inner, vocabulary, longest = 128, 2, 4, 2, 32, 256, 1024, 2048


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = "an adapter goes where a request needs it and leaves again when another one does"
    t.train_from_iterator([text, text[::-1], "hello 0123456789"] * 5, trainer)
    t.save(str(root / "tiny" / "tokenizer.json"))
    turns = "<s>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    write(root / "tiny" / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>",
        "model_max_length": longest, "clean_up_tokenization_spaces": False, "chat_template": turns,
    })


def base():
    write(root / "tiny" / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "intermediate_size": inner,
        "vocab_size": vocabulary, "max_position_embeddings": longest, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    })
    write(root / "tiny" / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    g = torch.Generator().manual_seed(1)

    def random(*shape, scale=None):
        return (torch.randn(*shape, generator=g) * (scale or shape[-1]) ** -0.5).to(torch.bfloat16)

    ones = lambda: torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": random(vocabulary, hidden, scale=1), "model.norm.weight": ones(), "lm_head.weight": random(vocabulary, hidden)}
    for n in range(layers):
        at = f"model.layers.{n}."
        weights |= {
            at + "input_layernorm.weight": ones(), at + "post_attention_layernorm.weight": ones(),
            at + "self_attn.q_proj.weight": random(heads * head, hidden), at + "self_attn.k_proj.weight": random(kv_heads * head, hidden),
            at + "self_attn.v_proj.weight": random(kv_heads * head, hidden), at + "self_attn.o_proj.weight": random(hidden, heads * head),
            at + "mlp.gate_proj.weight": random(inner, hidden), at + "mlp.up_proj.weight": random(inner, hidden),
            at + "mlp.down_proj.weight": random(hidden, inner),
        }
    save_file(weights, root / "tiny" / "model.safetensors", metadata={"format": "pt"})


def adapter(name, seed, rank):
    g = torch.Generator().manual_seed(seed)
    weights = {}
    for n in range(layers):
        for projection, size in (("q_proj", heads * head), ("v_proj", kv_heads * head)):
            key = f"base_model.model.model.layers.{n}.self_attn.{projection}"
            weights[f"{key}.lora_A.weight"] = torch.randn(rank, hidden, generator=g) * 0.5
            weights[f"{key}.lora_B.weight"] = torch.randn(size, rank, generator=g) * 0.5
    write(root / "lora" / name / "adapter_config.json", {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "target_modules": ["q_proj", "v_proj"], "bias": "none", "base_model_name_or_path": "./tiny", "inference_mode": True,
        "fan_in_fan_out": False, "modules_to_save": None,
    })
    save_file(weights, root / "lora" / name / "adapter_model.safetensors")


base()
tokenizer()
for i in range(1, 6):
    adapter(f"a{i}", 100 + i, 4)
adapter("big", 7, 16)
