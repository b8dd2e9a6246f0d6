WHOSE = "my cloudpickle"
