"""Handwritten digits with JAX (`pip install 'kungfu-lab[jax]'`): `kf run -n 2`.

JAX computes, `kf.Job` averages. JAX's arrays cannot be written to, so gradients go through
arrays of NumPy, which are made once.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import kfcore as kf


def predict(parameters, x):
    (w1, b1), (w2, b2) = parameters
    return jnp.maximum(x @ w1 + b1, 0) @ w2 + b2


@jax.jit
@jax.value_and_grad
def loss_and_gradients(parameters, x, y):
    return -jnp.take_along_axis(
        jax.nn.log_softmax(predict(parameters, x)), y[:, None], axis=1
    ).mean()


def updated(parameters, gradients, rate):
    return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients)


def main() -> None:
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    held_out = np.arange(len(x)) % 5 == 0
    train_x, train_y = x[~held_out], y[~held_out]
    draws = np.random.default_rng(0)
    parameters = [
        (draws.normal(0, n**-0.5, (n, m)).astype(np.float32), np.zeros(m, np.float32))
        for n, m in ((64, 64), (64, 10))
    ]
    arrays = [kf.empty(p.shape, p.dtype) for p in jax.tree.leaves(parameters)]
    with kf.init() as session, kf.Job(session, local_batch=32, learning_rate=0.5) as job:
        for _ in range(10):
            for rows in job.batches(len(train_x)):
                loss, gradients = loss_and_gradients(parameters, train_x[rows], train_y[rows])
                for array, gradient in zip(arrays, jax.tree.leaves(gradients), strict=True):
                    array[...] = gradient
                if not job.step(arrays, loss=float(loss)).skipped:
                    averages = jax.tree.unflatten(jax.tree.structure(gradients), arrays)
                    parameters = updated(parameters, averages, job.learning_rate)
        right = np.argmax(predict(parameters, x[held_out]), axis=1) == y[held_out]
        if session.rank == 0:
            print(f"{job.world_size} workers, {job.steps} steps: accuracy {right.mean():.3f}")


if __name__ == "__main__":
    main()
