// Command pause is the first process of every pod of the cluster of bench/cluster: it holds the pod's namespaces open until
// it is told to end.
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
