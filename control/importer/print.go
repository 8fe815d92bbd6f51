package importer

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
)

// document is an object without status, as people write it.
type document struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       any      `json:"spec"`
}

type metadata struct {
	Namespace   string            `json:"namespace,omitempty"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func documentOf(kind string, m metav1.ObjectMeta, spec any) document {
	return document{v1alpha1.SchemeGroupVersion.String(), kind, metadata{m.Namespace, m.Name, m.Labels, m.Annotations}, spec}
}

// write prints the objects as YAML. The settings and the VModels precede the models, so that no
// model with auto-delete exists without its VModel.
func (r *result) write(w io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# %d models and %d VModels of ModelMesh's registry.", len(r.models), len(r.vmodels))
	if r.skipped > 0 {
		fmt.Fprintf(&text, " %d more belong to skipped owners.", r.skipped)
	}
	text.WriteByte('\n')
	for _, note := range r.moving {
		comment(&text, note)
	}
	if len(r.lefts) > 0 {
		comment(&text, fmt.Sprintf("%d records are not taken over:", len(r.lefts)))
	}
	for _, l := range r.lefts {
		comment(&text, "- "+l.String())
	}
	var all []document
	if s := r.settings; s != nil {
		comment(&text, "A pool uses its oldest PoolSettings: if it has one, add the constraints there. Pods need these labels for those in MM_LABELS:")
		for _, name := range slices.Sorted(maps.Keys(r.labels)) {
			comment(&text, fmt.Sprintf("- %s: %q for %q", name, labelValue, r.labels[name]))
		}
		all = append(all, documentOf(v1alpha1.PoolSettingsKind, s.ObjectMeta, s.Spec))
	}
	for _, v := range r.vmodels {
		all = append(all, documentOf(v1alpha1.VModelKind, v.ObjectMeta, v.Spec))
	}
	for _, m := range r.models {
		all = append(all, documentOf(v1alpha1.ModelKind, m.ObjectMeta, m.Spec))
	}
	for _, d := range all {
		object, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("%s %s: %w", d.Kind, d.Metadata.Name, err)
		}
		text.WriteString("---\n")
		text.Write(object)
	}
	_, err := text.WriteTo(w)
	return err
}

// comment writes a line of comment. Line breaks in the text become spaces.
func comment(w *bytes.Buffer, text string) {
	fmt.Fprintf(w, "# %s\n", strings.Join(strings.Fields(text), " "))
}
