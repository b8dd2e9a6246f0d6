WHOSE = "my utils"
