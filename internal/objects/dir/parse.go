package dir

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/pods"
)

// defaultNamespace is the namespace of an object that names none, as kubectl has it.
const defaultNamespace = "default"

// contents is the objects of one file.
type contents struct {
	set objects.Set
	// at is the line of each object, by kind and name.
	at map[key]int
	// notes are faults that refuse nothing: fields of Kubernetes' own kinds that this version does not know.
	notes []string
}

type key struct {
	kind string
	name objects.Name
}

func (k key) String() string { return k.kind + " " + k.name.String() }

// Fault is what is wrong with a file, and where.
type Fault struct {
	File   string
	Line   int
	Reason string
}

// Error is "file:line: reason".
func (f *Fault) Error() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Reason) }

// parse reads the objects of one file: documents of YAML or JSON, and lists of kubectl get. Every error is a [Fault].
func parse(file string, text []byte) (*contents, error) {
	c := &contents{at: make(map[key]int)}
	for _, d := range documents(text) {
		p := &parser{file: file, doc: d, contents: c}
		if err := p.document(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parser reads one document into contents.
type parser struct {
	*contents
	file string
	doc  *document
}

// fault is an error at the line of path, a field path such as "items[0].spec.priority".
func (p *parser) fault(path, format string, args ...any) error {
	return &Fault{File: p.file, Line: p.doc.line(path), Reason: fmt.Sprintf(format, args...)}
}

func (p *parser) document() error {
	text, err := yaml.YAMLToJSONStrict(p.doc.text)
	if err != nil {
		line, reason := p.doc.yamlError(err)
		return &Fault{File: p.file, Line: line, Reason: reason}
	}
	if bytes.Equal(text, []byte("null")) {
		return nil // only comments
	}
	return p.object("", text)
}

// object reads the object at path, the empty path being the document itself.
func (p *parser) object(path string, text []byte) error {
	var meta struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &meta); err != nil {
		return p.fault(path, "not a Kubernetes object: it needs apiVersion, kind and metadata")
	}
	switch {
	case meta.APIVersion == v1alpha1.GroupVersion && meta.Kind == v1alpha1.LLMRouteKind:
		return p.route(path, text)
	case meta.APIVersion == v1alpha1.GroupVersion && meta.Kind == v1alpha1.PoolSettingsKind:
		return p.settings(path, text)
	case meta.APIVersion == v1alpha1.GroupVersion && meta.Kind == v1alpha1.EndpointListKind:
		return p.list(path, text)
	case meta.APIVersion == v1alpha1.GroupVersion && meta.Kind == v1alpha1.ModelKind:
		return p.model(path, text)
	case meta.APIVersion == pool.GroupVersion && meta.Kind == pool.Kind:
		return p.pool(path, text)
	case meta.APIVersion == "v1" && meta.Kind == objects.PodKind:
		return p.pod(path, text)
	case strings.HasSuffix(meta.Kind, "List") && meta.Kind != v1alpha1.EndpointListKind: // kubectl get -o yaml
		for i, item := range meta.Items {
			if err := p.object(fmt.Sprintf("items[%d]", i), item); err != nil {
				return err
			}
		}
		return nil
	}
	return p.fault(join(path, "kind"), "apiVersion %q, kind %q is not an object that Headgate reads; it reads %s %s, %s, %s and %s, %s %s and v1 Pod",
		meta.APIVersion, meta.Kind, v1alpha1.GroupVersion, v1alpha1.LLMRouteKind, v1alpha1.ModelKind, v1alpha1.EndpointListKind, v1alpha1.PoolSettingsKind,
		pool.GroupVersion, pool.Kind)
}

func (p *parser) route(path string, text []byte) error {
	var r v1alpha1.LLMRoute
	unknown, err := p.decode(path, text, &r)
	if err != nil {
		return err
	}
	r.Namespace = cmp.Or(r.Namespace, defaultNamespace)
	id := key{v1alpha1.LLMRouteKind, objects.Name{Namespace: r.Namespace, Name: r.Name}}
	if len(unknown) > 0 { // our own kind: a field that we do not know is a slip of the pen
		return p.fault(join(path, unknown[0].path), "%s: %s", id, unknown[0].reason)
	}
	if err := p.check(path, id, objects.CheckRoute(&r)); err != nil {
		return err
	}
	p.set.Routes = append(p.set.Routes, r)
	return nil
}

func (p *parser) settings(path string, text []byte) error {
	var s v1alpha1.PoolSettings
	unknown, err := p.decode(path, text, &s)
	if err != nil {
		return err
	}
	s.Namespace = cmp.Or(s.Namespace, defaultNamespace)
	id := key{v1alpha1.PoolSettingsKind, objects.Name{Namespace: s.Namespace, Name: s.Name}}
	if len(unknown) > 0 {
		return p.fault(join(path, unknown[0].path), "%s: %s", id, unknown[0].reason)
	}
	if err := p.check(path, id, objects.CheckFolderSettings(&s)); err != nil {
		return err
	}
	p.set.Settings = append(p.set.Settings, s)
	return nil
}

func (p *parser) model(path string, text []byte) error {
	var m v1alpha1.Model
	unknown, err := p.decode(path, text, &m)
	if err != nil {
		return err
	}
	m.Namespace = cmp.Or(m.Namespace, defaultNamespace)
	id := key{v1alpha1.ModelKind, objects.Name{Namespace: m.Namespace, Name: m.Name}}
	if len(unknown) > 0 {
		return p.fault(join(path, unknown[0].path), "%s: %s", id, unknown[0].reason)
	}
	if err := p.check(path, id, objects.CheckModelObject(&m)); err != nil {
		return err
	}
	p.set.Models = append(p.set.Models, m)
	return nil
}

func (p *parser) list(path string, text []byte) error {
	var l v1alpha1.EndpointList
	unknown, err := p.decode(path, text, &l)
	if err != nil {
		return err
	}
	l.Namespace = cmp.Or(l.Namespace, defaultNamespace)
	id := key{v1alpha1.EndpointListKind, objects.Name{Namespace: l.Namespace, Name: l.Name}}
	if len(unknown) > 0 {
		return p.fault(join(path, unknown[0].path), "%s: %s", id, unknown[0].reason)
	}
	if err := p.check(path, id, objects.CheckList(&l)); err != nil {
		return err
	}
	p.set.Lists = append(p.set.Lists, objects.List{EndpointList: l, Loopback: true})
	return nil
}

func (p *parser) pool(path string, text []byte) error {
	var ip pool.InferencePool
	unknown, err := p.decode(path, text, &ip)
	if err != nil {
		return err
	}
	ip.Namespace = cmp.Or(ip.Namespace, defaultNamespace)
	id := key{pool.Kind, objects.Name{Namespace: ip.Namespace, Name: ip.Name}}
	p.note(path, id, unknown)
	if err := p.check(path, id, objects.CheckPool(&ip)); err != nil {
		return err
	}
	p.set.Pools = append(p.set.Pools, ip)
	return nil
}

func (p *parser) pod(path string, text []byte) error {
	var pod corev1.Pod
	unknown, err := p.decode(path, text, &pod)
	if err != nil {
		return err
	}
	pod.Namespace = cmp.Or(pod.Namespace, defaultNamespace)
	id := key{objects.PodKind, objects.Name{Namespace: pod.Namespace, Name: pod.Name}}
	p.note(path, id, unknown)
	read, faults := pods.Of(&pod)
	if err := p.check(path, id, faults); err != nil {
		return err
	}
	p.set.Pods = append(p.set.Pods, read)
	return nil
}

// check turns the first of faults into an error, or else records where the object is.
func (p *parser) check(path string, id key, faults field.ErrorList) error {
	if len(faults) > 0 {
		f := faults[0]
		return p.fault(join(path, f.Field), "%s: %v", id, f)
	}
	if line, ok := p.at[id]; ok {
		return p.fault(join(path, "metadata.name"), "%s is defined twice, first at line %d", id, line)
	}
	p.at[id] = p.doc.line(join(path, "metadata.name"))
	return nil
}

func (p *parser) note(path string, id key, unknown []unknownField) {
	for _, u := range unknown {
		p.notes = append(p.notes, p.fault(join(path, u.path), "%s: %s: ignored", id, u.reason).Error())
	}
}

// unknownField is a field that the Go type does not have.
type unknownField struct{ path, reason string }

// decode reads text into the object and returns the fields that it does not have.
func (p *parser) decode(path string, text []byte, into any) ([]unknownField, error) {
	strict, err := kjson.UnmarshalStrict(text, into, kjson.DisallowUnknownFields)
	if err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, p.fault(join(path, wrong.Field), "%s: want %s, not %s", wrong.Field, jsonName(wrong), wrong.Value)
		}
		// A value that reads itself, such as a duration, does not say where it stands, but quotes what it read.
		reason := err.Error()
		return nil, &Fault{File: p.file, Line: p.doc.lineOfQuoted(reason, path), Reason: reason}
	}
	var unknown []unknownField
	for _, e := range strict {
		if at, ok := errors.AsType[kjson.FieldError](e); ok {
			unknown = append(unknown, unknownField{at.FieldPath(), e.Error()})
		}
	}
	return unknown, nil
}

// jsonName says what a Go type is called in YAML.
func jsonName(wrong *json.UnmarshalTypeError) string {
	switch kind := wrong.Type.Kind().String(); {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case kind == "slice":
		return "a list"
	case kind == "struct", kind == "map":
		return "a mapping"
	case kind == "bool":
		return "true or false"
	default:
		return "a " + kind
	}
}

func join(path, rest string) string {
	switch {
	case path == "":
		return rest
	case rest == "":
		return path
	}
	return path + "." + rest
}
