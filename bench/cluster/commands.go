package cluster

// Commands are the commands of "bench cluster".
var Commands = []string{"up", "down", "status", "images", "exec", "build", "api"}
