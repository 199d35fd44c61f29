select proc.take($1, 300, 1000000000)
