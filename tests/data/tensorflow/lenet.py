"""A step of a small LeNet on fixed data, as a user's script has it: `lenet.py eager|graph|session`.

PLANTED in the environment is the fault of the product of its first dense layer: wrong, nan or nothing. KERNEL
is the library with that product (wrong_matmul.c). `session` is a graph of v1, dumped into the folder DUMP.
"""

import os
import sys

import numpy as np
import tensorflow as tf

how = sys.argv[1]
if os.environ.get("KERNEL"):
    tf.load_library(os.environ["KERNEL"])
draws = np.random.default_rng(0)
images = draws.standard_normal((3, 10, 10, 1)).astype(np.float32)
labels = np.array([0, 1, 3])
shapes = {"conv1": (3, 3, 1, 4), "conv2": (3, 3, 4, 6), "fc1": (24, 10), "fc2": (10, 4)}
values = {
    name: (draws.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
    for name, shape in shapes.items()
}


def lenet(x, weights):
    for name in ("conv1", "conv2"):
        with tf.name_scope(name):
            x = tf.nn.relu(tf.nn.conv2d(x, weights[name], 1, "VALID"))
            if name == "conv1":
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [3, -1])
    with tf.name_scope("fc1"):
        x = tf.nn.relu(tf.matmul(x, weights["fc1"]))
    with tf.name_scope("fc2"):
        return tf.matmul(x, weights["fc2"])


def loss_of(logits, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def train():
    weights = {name: tf.Variable(value, name=name) for name, value in values.items()}

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(lenet(x, weights), y)
        for each, gradient in zip(
            weights.values(), tape.gradient(loss, list(weights.values())), strict=True
        ):
            each.assign_sub(0.1 * gradient)
        return loss

    run = tf.function(step) if how == "graph" else step
    return [float(run(tf.constant(images), tf.constant(labels))) for _ in range(2)]


def train_in_session():
    from tensorflow.python import debug

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    x = v1.placeholder(tf.float32, images.shape, name="x")
    y = v1.placeholder(tf.int64, labels.shape, name="y")
    with v1.variable_scope("LeNet"):
        weights = {name: v1.get_variable(name, initializer=each) for name, each in values.items()}
        loss = loss_of(lenet(x, weights), y)
    update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    if "DUMP" in os.environ:
        session = debug.DumpingDebugWrapperSession(session, os.environ["DUMP"])
    else:
        session = debug.LocalCLIDebugWrapperSession(session, ui_type="readline")
    return [session.run([loss, update], {x: images, y: labels})[0] for _ in range(2)]


print(train_in_session() if how == "session" else train())
