// Command pause is the first process of every pod of bench/cluster: it keeps the pod's namespaces
// until it is told to stop.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	<-told
}
