"""What data loading shows from a machine with GPUs."""

from helpers.experiments import experiment
from lessons.data_loading import pin_memory

copies, overlap = map(experiment(gpus=1, seconds=10), (pin_memory.copies, pin_memory.overlap))
