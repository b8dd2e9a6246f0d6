WHERE = "beside the real script"
