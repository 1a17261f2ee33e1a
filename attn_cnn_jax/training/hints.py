"""What a run says when something looks wrong: that it takes days, that it does not learn."""

from ml_collections import ConfigDict

LONG = 24 * 3600  # seconds from which on a run says how long it takes
SECONDS_TO_ESTIMATE = 5.0  # of training, before its rate is trusted
MIN_STEPS = 100  # before a network can be said not to learn
ABOVE_CHANCE = 0.05  # share of the way from chance to all right that counts as having begun to learn


def long_run(seconds: float, platform: str) -> str:
    """Returns what to do about a run that takes so many seconds; "" for less than a day.

    Args:
      seconds: of training that are ahead.
      platform: of the devices, as JAX names it.
    """
    if seconds < LONG:
        return ""
    advice = "use a GPU, or a smaller network such as --config=cifar10_cpu" if platform == "cpu" else "use more devices"
    return f"about {seconds / 3600:,.0f} hours at this rate: {advice}"


def not_learning(config: ConfigDict, step: int, num_steps: int, total_steps: int, accuracy: float) -> str:
    """Returns a hint at a training record a tenth into the run, if accuracy is still at chance; else "".

    Args:
      config: of the run.
      step: the last step of the record.
      num_steps: that the record covers.
      total_steps: of the run.
      accuracy: its mean training accuracy.
    """
    tenth, chance = max(total_steps / 10, MIN_STEPS), 1 / config.model.num_classes
    if not step - num_steps < tenth <= step or accuracy > chance + ABOVE_CHANCE * (1 - chance):
        return ""
    optimizer = config.optimizer
    advice = "config.optimizer.name=adam with config.optimizer.learning_rate=0.002"
    if optimizer.name != "sgd":
        advice = f"config.optimizer.learning_rate below {optimizer.learning_rate:g}"
    return (
        f"hint: after {step} of {total_steps} steps training accuracy is {accuracy:.1%}, and chance {chance:.1%}: "
        f"the network is not learning; try {advice}, in a new --workdir"
    )
