"""Options of a Hugging Face Trainer: what becomes of each, and which parts of it may be replaced.

Owns the table.  A test compares it with the installed version.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pliant.core.errors import ConfigError
from pliant.integrations import options
from pliant.integrations.options import idle, refused, taken

TRAINING_ARGUMENTS: options.Table = dict(
    [
        *taken(
            "output_dir num_train_epochs max_steps learning_rate lr_scheduler_kwargs warmup_steps "
            "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules "
            "label_smoothing_factor bf16 bf16_full_eval fp16_full_eval tf32 "
            "activation_checkpointing activation_checkpointing_kwargs "
            "gradient_checkpointing gradient_checkpointing_kwargs "
            "use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha "
            "torch_empty_cache_steps logging_strategy logging_steps logging_first_step "
            "logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica "
            "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id "
            "eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only "
            "eval_on_start eval_do_concat_batches eval_accumulation_steps include_for_metrics "
            "batch_eval_metrics save_only_model save_strategy save_steps save_total_limit "
            "load_best_model_at_end metric_for_best_model greater_is_better full_determinism "
            "data_seed use_cpu dataloader_num_workers dataloader_prefetch_factor "
            "remove_unused_columns label_names length_column_name"
        ),
        *taken("per_device_train_batch_size", "times `gradient_accumulation_steps` a step"),
        *taken("gradient_accumulation_steps", "micro-batches of a step, unless `slots=` says more"),
        *taken("max_grad_norm", "clips the norm of the global gradient"),
        *taken("average_tokens_across_devices", "always: losses are weighted by tokens"),
        *taken("seed", "also of what each micro-batch draws: dropout draws other numbers"),
        *taken("disable_tqdm", "under `pliant run` logs are printed in any case"),
        *taken("dataloader_drop_last", "of the global batch; refused where the framework would "
                                       "train on a part of it"),
        *idle("log_on_each_node save_on_each_node", "one replica speaks for all"),
        *idle("dataloader_pin_memory dataloader_persistent_workers dataloader_in_order",
              "loader processes are a session's"),
        *idle("ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
              "ddp_static_graph ddp_backend ddp_timeout", "there is no DistributedDataParallel"),
        *idle("eval_use_gather_object", "each replica evaluates the whole dataset"),
        *idle("do_train do_eval do_predict resume_from_checkpoint local_rank",
              "for scripts; the Trainer does not read it"),
        *idle("ignore_data_skip restore_callback_states_from_checkpoint",
              "a run goes on from its own checkpoint, with data and callbacks"),
        *idle("hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
              "nothing is pushed"),
        *idle("torch_compile_backend torch_compile_mode", "see `torch_compile`"),
        *idle("fsdp_config", "see `fsdp`"),
        *taken("lr_scheduler_type", "but `greedy`"),
        *taken("optim", "but those that update within the backward or have a mode: `lomo`, "
               "`adalomo`, `*_layerwise`, `schedule_free_*`"),
        *refused("fp16", "set bf16=True"),
        *refused("torch_compile", "call model.compile() in the script"),
        *refused("auto_find_batch_size", "the batch is the same for every number of replicas: set "
                 "per_device_train_batch_size, or cut it with slots="),
        *refused("skip_memory_metrics", "they are those of one replica; `pliant status` has more",
                 True),
        *refused("enable_jit_checkpoint", "`pliant suspend` keeps the state where a step ends; "
                 "pass checkpoint=pliant.Checkpoint(...)"),
        *refused("push_to_hub", "call push_to_hub after train() where is_world_process_zero()"),
        *refused("accelerator_config", "its options divide batches otherwise; leave it out"),
        *refused("parallelism_config", "the model is whole in each replica; leave it out"),
        *refused("dataloader_multiprocessing_context", "loader processes are forked", "fork"),
        *refused("train_sampling_strategy", "its micro-batches have no fixed size; take 'random', "
                 "'sequential' or 'group_by_length'", "random", "sequential", "group_by_length"),
        *refused("fsdp", "leave it out: each replica holds the whole model"),
        *refused("deepspeed", "leave it out: a session has its own reduction"),
        *refused("debug", "look at one replica alone: python SCRIPT", []),
    ]
)  # fmt: skip
"""Of ``transformers.TrainingArguments``."""

TRL_OPTIONS: options.Table = dict(
    refused("sync_ref_model", "the reference model changes beside the run; keep it as it is")
)
"""Of the arguments of SFTTrainer and DPOTrainer that are not among those; the rest is taken."""

_OPTIMIZERS = ("lomo", "schedule_free", "layerwise")
"""In names of optimizers that work within a backward, or have a mode of their own."""

_REPLACED = (
    "_inner_training_loop", "_run_epoch", "_prepare_for_training", "get_batch_samples",
    "_clip_grad_norm", "_get_grad_norm", "_wrap_model",
)  # fmt: skip
"""Methods of a Trainer in whose place is a session."""

_OTHER_LOOPS = (
    "GRPOTrainer",
    "RLOOTrainer",
    "OnlineDPOTrainer",
    "DistillationTrainer",
    "PPOTrainer",
)

_UNSEEN = {
    "on_substep_end": "the micro-batches of a step are spread over replicas: use on_step_end",
    "on_pre_optimizer_step": "the gradient is known when its step is done: use on_step_end",
}
"""Events of callbacks that do not come, and what to do."""


def check_arguments(arguments: Any, plain: type) -> None:
    """Refuse options that an elastic run cannot do.

    Args:
        arguments: of the Trainer.
        plain: ``transformers.TrainingArguments``.

    Raises:
        ConfigError: there is one.
    """
    whose = type(arguments).__name__
    defaults = {one.name: one.default for one in dataclasses.fields(plain) if one.init}
    values = {name: getattr(arguments, name) for name in defaults}
    divided = values["accelerator_config"]
    if divided is not None:  # it is made of nothing, too
        seedable = divided.use_seedable_sampler
        defaults["accelerator_config"] = type(divided)(use_seedable_sampler=seedable)
    options.check(whose, values, defaults, TRAINING_ARGUMENTS)
    own = {name: getattr(arguments, name) for name in TRL_OPTIONS if hasattr(arguments, name)}
    options.check(whose, own, dict.fromkeys(own), TRL_OPTIONS)
    optim = str(getattr(arguments.optim, "value", arguments.optim))
    if any(word in optim for word in _OPTIMIZERS):
        raise ConfigError(
            f"{whose} has optim={optim!r}, which updates weights within the backward or between "
            "steps; take another, such as 'adamw_torch'"
        )
    if arguments.n_gpu > 1:
        raise ConfigError(
            f"this process sees {arguments.n_gpu} GPUs, over which the Trainer would spread each "
            "batch; start the script with `pliant run`, or with CUDA_VISIBLE_DEVICES=0"
        )


def check_class(trainer: type, mixin: type, plain: type) -> None:
    """Refuse a Trainer that has a loop of its own.

    Args:
        trainer: the class of what trains.
        mixin: ``Elastic``.
        plain: ``transformers.Trainer``.

    Raises:
        ConfigError: it has.
    """
    for cls in trainer.__mro__[: trainer.__mro__.index(plain)]:
        if cls.__name__ in _OTHER_LOOPS:
            raise ConfigError(
                f"{cls.__name__} makes its samples while it trains, and a session reads a dataset; "
                "of trl SFTTrainer and DPOTrainer are elastic"
            )
        own = [name for name in _REPLACED if name in vars(cls)]
        if own and not issubclass(mixin, cls) and cls is not mixin:
            raise ConfigError(
                f"{cls.__name__} has its own {own[0]}, which an elastic Trainer does not call; "
                "write it as a callback, or as compute_loss or training_step"
            )


def check_callbacks(callbacks: list[Any], plain: type) -> None:
    """Refuse callbacks for events that an elastic run has not.

    Args:
        callbacks: of the Trainer.
        plain: ``transformers.TrainerCallback``.

    Raises:
        ConfigError: there is one.
    """
    for callback in callbacks:
        for event, instead in _UNSEEN.items():
            if getattr(type(callback), event) is not getattr(plain, event):
                raise ConfigError(
                    f"{type(callback).__name__} has {event}, and an elastic run has no such "
                    f"moment on one replica: {instead}"
                )
