// Command pause is the first process of every pod of bench/cluster: it keeps the namespaces of the
// pod until it is asked to stop.
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
