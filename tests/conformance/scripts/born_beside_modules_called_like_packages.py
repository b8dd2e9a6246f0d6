"""Modules called cloudpickle, psutil and utils beside the script are what it imports."""
import cloudpickle
import psutil
import utils

print(cloudpickle.WHOSE, psutil.WHOSE, utils.WHOSE)
