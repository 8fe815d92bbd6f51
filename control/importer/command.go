// Package importer is the command "control import". It reads the registry of ModelMesh and prints
// Headgate's objects for it.
package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/objects"
)

const usage = `control import reads the models and VModels that clients have registered at ModelMesh, and prints them as Models and VModels.
It changes nothing in etcd.

Usage:

  control import --etcd FILE --pool NAME [flags] > models.yaml
  control import --dump FILE --pool NAME [flags] > models.yaml

--etcd is the JSON of ModelMesh's Secret model-serving-etcd, with which it connects to etcd. --dump is the output of
etcdctl get --prefix PREFIX -w json. The keys must be those of one ModelMesh service; of several, the error lists their prefixes.

Type constraints are not in etcd. --type-constraints is the file of MM_TYPE_CONSTRAINTS_PATH, which modelmesh-serving writes into
the ConfigMap tc-config. They are printed as PoolSettings, with Kubernetes labels for the labels in MM_LABELS.

Ids that no object can have as its name get a name with a hash, and keep their id. Records that cannot be taken over are listed
with the reason, in a comment and on stderr. Then the exit status is 3.

Examples:

  kubectl get secret model-serving-etcd -o jsonpath='{.data.etcd_connection}' | base64 -d > etcd.json
  control import --etcd etcd.json --pool runtimes --skip-owner isvc --skip-owner ksp > models.yaml
  etcdctl get --prefix /modelmesh-serving/ -w json | control import --dump - --pool runtimes

`

// incomplete is the exit status if records are not taken over.
const incomplete = 3

// maxDump limits the bytes of a dump: more than etcd stores by default.
const maxDump = 8 << 30

type flags struct {
	etcd, dump, prefix, constraints string
	to                              target
	owners                          []string
}

// Command is the command "import". It prints objects to out and records that are not taken over to
// faults.
func Command(ctx context.Context, args []string, out, faults io.Writer) error {
	f, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	r, lefts, err := f.read(ctx)
	if err != nil {
		return err
	}
	var constraints map[string]typeConstraint
	if f.constraints != "" {
		text, err := os.ReadFile(f.constraints)
		if err != nil {
			return err
		}
		if constraints, err = parseConstraints(text); err != nil {
			return fmt.Errorf("%s: %w", f.constraints, err)
		}
	}
	result := convert(r, constraints, f.owners, f.to)
	result.lefts = append(lefts, result.lefts...)
	if err := result.write(out); err != nil {
		return err
	}
	if len(result.lefts) == 0 {
		return nil
	}
	why := fmt.Sprintf("%d records are not taken over", len(result.lefts))
	fmt.Fprintf(faults, "control import: %s:\n", why)
	for _, l := range result.lefts {
		fmt.Fprintln(faults, l)
	}
	return cli.Status{Code: incomplete, Why: why}
}

func parseFlags(args []string, out io.Writer) (flags, error) {
	var f flags
	fs := cli.Flags("control import", usage, out)
	fs.StringVar(&f.etcd, "etcd", "", "connect to etcd with the configuration in this `FILE`, the JSON of ModelMesh's Secret model-serving-etcd")
	fs.StringVar(&f.dump, "dump", "", "read this `FILE`, the output of etcdctl get --prefix PREFIX -w json; - is the standard input")
	fs.StringVar(&f.prefix, "prefix", "", "read only keys that begin with `PREFIX` (default the root_prefix of --etcd)")
	fs.StringVar(&f.to.pool, "pool", "", "the `NAME` of the InferencePool whose engines load the models (required)")
	fs.StringVar(&f.to.namespace, "namespace", "default", "the `NAMESPACE` of the pool and the objects")
	fs.StringArrayVar(&f.owners, "skip-owner", nil,
		"leave out the VModels of this `OWNER` and their models, such as isvc for those of InferenceServices and ksp for those of Predictors; repeatable")
	fs.StringVar(&f.constraints, "type-constraints", "", "print the type constraints in this `FILE` as PoolSettings")
	if err := cli.Parse(fs, args, 0); err != nil {
		return f, err
	}
	switch {
	case (f.etcd == "") == (f.dump == ""):
		return f, fs.Wrong(errors.New("set either --etcd or --dump"))
	case f.to.pool == "":
		return f, fs.Wrong(errors.New("set --pool to the InferencePool whose engines load the models"))
	case len(objects.CheckName(f.to.pool)) > 0:
		return f, fs.Wrong(fmt.Errorf("--pool %s: no InferencePool can have this name", f.to.pool))
	case len(objects.CheckName(f.to.namespace)) > 0 || strings.Contains(f.to.namespace, "."):
		return f, fs.Wrong(fmt.Errorf("--namespace %s: no namespace can have this name", f.to.namespace))
	}
	return f, nil
}

// read returns the registry.
func (f *flags) read(ctx context.Context) (registry, []left, error) {
	if f.dump != "" {
		pairs, err := readDump(f.dump)
		if err != nil {
			return registry{}, nil, err
		}
		r, lefts, err := parse(pairs, f.prefix)
		if err != nil {
			return r, nil, fmt.Errorf("%s: %w", f.dump, err)
		}
		return r, lefts, nil
	}
	config, err := readConfig(f.etcd)
	if err != nil {
		return registry{}, nil, err
	}
	prefix := f.prefix
	if prefix == "" && config.RootPrefix != "" {
		prefix = config.RootPrefix + "/" // ModelMesh appends paths, which begin with a slash
	}
	pairs, err := config.fetch(ctx, prefix)
	if err != nil {
		return registry{}, nil, err
	}
	return parse(pairs, prefix)
}

func readDump(path string) ([]pair, error) {
	from := os.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxDump))
	if err != nil {
		return nil, err
	}
	pairs, err := parseDump(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pairs, nil
}
