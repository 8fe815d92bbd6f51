package plan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/workload"
)

// read reads the CapacityPlan, and all files that the plan names.
func (c *config) read(ctx context.Context) (*request, error) {
	file := c.file
	a := new(request)
	var all []v1alpha1.CapacityPlan
	if file == "" {
		set, err := c.source.Objects(ctx, kinds.Plans())
		if err != nil {
			return nil, err
		}
		one, err := c.choose(set.Plans)
		if err != nil {
			return nil, err
		}
		if at := set.At[idOf(one)]; at != "" {
			file = at[:strings.LastIndexByte(at, ':')] // at has the form file:line
		}
		all = []v1alpha1.CapacityPlan{*one}
	}
	if file != "" { // read this file alone: the error then has the line number
		f, err := dir.ReadFile(file, kinds.Plans())
		if err != nil {
			return nil, err
		}
		one, err := c.choose(f.Plans)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		a.fault = func(field, words string) error { return f.Fault(idOf(one), field, "%s: %s", field, words) }
		all = []v1alpha1.CapacityPlan{*one}
	}
	a.CapacityPlan = &all[0]
	if a.fault == nil {
		a.fault = func(field, words string) error { return fmt.Errorf("%s: %s: %s", idOf(a.CapacityPlan), field, words) }
	}
	if c.seeded {
		a.Spec.Seed = c.seed
	}
	if err := a.readFiles(file); err != nil {
		return nil, err
	}
	return a, c.readTrace(a, file)
}

func idOf(o *v1alpha1.CapacityPlan) objects.Object {
	return objects.Object{Kind: v1alpha1.CapacityPlanKind, Name: objects.Name{Namespace: o.Namespace, Name: o.Name}}
}

// choose returns the CapacityPlan with the requested name, or the only one if no name is requested.
func (c *config) choose(all []v1alpha1.CapacityPlan) (*v1alpha1.CapacityPlan, error) {
	var names []string
	for i := range all {
		if all[i].Name == c.name || c.name == "" && len(all) == 1 {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("there is no CapacityPlan")
	case c.name == "":
		return nil, fmt.Errorf("there are several CapacityPlans: name one of %s", strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("there is no CapacityPlan %s: there are %s", c.name, strings.Join(names, ", "))
}

// readFiles reads the profiles and the hardware file that the CapacityPlan in file names.
func (a *request) readFiles(file string) (err error) {
	a.files, err = problem.ReadFiles(a.CapacityPlan, func(field, name string) (objects.Set, error) {
		switch hardware := field == "spec.hardwareFile"; {
		case file == "" && hardware:
			return objects.Set{}, a.fault(field, "a plan from an API server cannot name files: write the hardware into the plan")
		case file == "":
			return objects.Set{}, a.fault("spec.stages",
				"a plan from an API server cannot name files: write the latencies or the engine of "+name+" into the plan")
		}
		f, err := dir.ReadFile(beside(file, name), kinds.Plans())
		if errors.Is(err, os.ErrNotExist) {
			return objects.Set{}, a.fault(field, "there is no file "+beside(file, name))
		}
		if err != nil {
			return objects.Set{}, err
		}
		return f.Set, nil
	})
	return a.located(err)
}

// beside resolves a file name relative to the directory of another file.
func beside(file, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(file), name)
}

// readTrace reads the trace and splits it: the first part is for planning, the second for the test.
func (c *config) readTrace(a *request, file string) error {
	name := c.trace
	if name == "" {
		if a.Spec.Trace == "" {
			return a.fault("spec", "there is no trace: set it in the plan or with --trace, such as --trace gamma:rate=100,cv=1,seconds=300")
		}
		if name = a.Spec.Trace; !strings.HasPrefix(name, string(workload.Gamma)+":") {
			if file == "" {
				return a.fault("spec.trace", "a plan from an API server cannot name files: use --trace")
			}
			name = beside(file, name)
		}
	}
	t, err := workload.Open(os.Open, name, workload.Options{Format: workload.Format(c.format)})
	if err != nil {
		return err
	}
	if !strings.HasPrefix(name, string(workload.Gamma)+":") { // the trace is a file: add a description of its content to the name
		fmt.Fprintf(os.Stderr, "%s is %s\n", t.Name, t.About)
	}
	seed := uint64(a.Spec.Seed) //nolint:gosec // it is not negative
	all := t.Queries(seed)
	if t.Generated {
		a.planned, a.tested = queries{t.Name, all, seed, 0}, queries{"another seed", t.Queries(seed + 1), seed + 1, 0}
		return nil
	}
	first, rest := workload.Split(all, c.split)
	a.planned = queries{fmt.Sprintf("the first %.4g %% of %s", 100*c.split, t.Name), first, seed, 0}
	a.tested = queries{"the rest", rest, seed + 1, 0}
	if len(all) > 0 {
		a.tested.from = c.split * all[len(all)-1].At
	}
	return nil
}
