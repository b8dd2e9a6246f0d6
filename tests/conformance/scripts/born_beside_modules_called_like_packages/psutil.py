WHOSE = "my psutil"
