package command

import (
	"fmt"
	"sync"
)

// serveAdapters serves the calls for LoRA adapters until the function that it returns is called.
func (a *agent) serveAdapters(*sync.WaitGroup) (end func(), err error) {
	return nil, fmt.Errorf("--management: this agent does not load adapters onto engines of the kind %s yet", a.kind)
}
