"""Policies beside trainers that own the loop."""

import math

import pytest
import torch

import kfcore as kf
from kfcore.errors import UsageError
from kfcore.torch.callbacks import TrainerPolicies, lightning_callback, transformers_callback


class Plan(kf.Policy):
    """Halves the rate after two steps, asks for batch 16 after three, ends after five."""

    def after_step(self, seen):
        if seen.step == 2:
            return kf.SetLearningRate(seen.learning_rate / 2, reason="test")
        if seen.step == 3:
            return kf.SetLocalBatch(16, reason="test")
        return kf.Stop(reason="test") if seen.step == 5 else None


def data(n=64):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, x.sum(dim=1, keepdim=True)


def test_policies_change_rate_and_batch_and_end_a_training_they_do_not_own():
    batches, rates = [], []
    policies = TrainerPolicies(local_batch=8, policies=[Plan()], on_local_batch=batches.append)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    policies.begin(model, optimizer)
    x, y = data()
    for _ in range(20):
        torch.nn.functional.mse_loss(model(x), y).backward()
        if not policies.before_update(optimizer, schedulers=(scheduler,)):
            break
        optimizer.step()
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"])
    policies.end()
    assert batches == [16]
    assert sorted(set(rates)) == [0.05, 0.1]
    assert scheduler.base_lrs == [0.05]
    assert policies.job.stopped
    assert policies.job.steps <= 7


def test_a_step_with_a_gradient_that_is_not_finite_updates_nothing():
    policies = TrainerPolicies(local_batch=8)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    policies.begin(torch.nn.Linear(1, 1), optimizer)
    weight.grad = torch.tensor([1.0, math.inf])
    assert policies.before_update(optimizer)
    optimizer.step()
    assert weight.tolist() == [1.0, 1.0]


def test_what_a_trainer_cannot_follow_is_refused():
    with pytest.raises(UsageError, match="learning_rate: the trainer's optimizer has it"):
        TrainerPolicies(local_batch=1, learning_rate=1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(UsageError, match=r"begin\(\) was not called"):
        TrainerPolicies(local_batch=1).before_update(optimizer)


def test_lightning_trains_under_a_policy():
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = lightning_callback(
        local_batch=8, policies=[Plan()], on_local_batch=lambda _: None
    )
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dataset = torch.utils.data.TensorDataset(*data(256))
    trainer.fit(Model(), torch.utils.data.DataLoader(dataset, batch_size=8))
    assert callback.policies.job.stopped
    assert 5 <= trainer.global_step <= 7
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.05


def test_transformers_trains_under_a_policy(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            y = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}

    x, y = data(256)
    callback = transformers_callback(
        local_batch=8, policies=[Plan()], on_local_batch=lambda _: None
    )
    trainer = transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            max_steps=20,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()
    assert callback.policies.job.stopped
    assert 5 <= trainer.state.global_step <= 7
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05
