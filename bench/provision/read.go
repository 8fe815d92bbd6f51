package provision

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/workload"
)

// Asked is a CapacityPlan with the files that it names.
type Asked struct {
	*v1alpha1.CapacityPlan
	files problem.Files
}

// Read reads a file that has a single object, a CapacityPlan, and the files that the plan names.
func Read(file string) (*Asked, error) {
	f, err := dir.ReadFile(file, kinds.Plans())
	if err != nil {
		return nil, err
	}
	if len(f.Plans) != 1 {
		return nil, fmt.Errorf("%s has %d CapacityPlans: want one", file, len(f.Plans))
	}
	a := &Asked{CapacityPlan: &f.Plans[0]}
	a.files, err = problem.ReadFiles(a.CapacityPlan, func(_, name string) (objects.Set, error) {
		f, err := dir.ReadFile(filepath.Join(filepath.Dir(file), name), kinds.Plans())
		if err != nil {
			return objects.Set{}, err
		}
		return f.Set, nil
	})
	return a, err
}

// Problem returns the planning problem for the trace t with a seed.
func (a *Asked) Problem(t string, seed uint64) (*planner.Problem, error) {
	is, err := workload.Open(os.Open, t, workload.Options{})
	if err != nil {
		return nil, err
	}
	p, err := problem.New(a.CapacityPlan, a.files, nil, is.Queries(seed), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	p.Seed = seed
	return p, nil
}
