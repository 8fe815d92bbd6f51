package dir

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/profile"
)

// defaultNamespace is the namespace of a namespaced object that names none, as in kubectl.
const defaultNamespace = "default"

// contents is the objects of one file, or an engine profile, or a profile by batch size.
type contents struct {
	set objects.Set
	// as has each object as written.
	as map[objects.Object]written
	// notes are warnings: fields of Kubernetes' own kinds that this version does not know.
	notes []string
	// foreign are the kinds of skipped objects, such as "apps/v1 Deployment".
	foreign []string
}

// written is an object as a file has it, with its line.
type written struct {
	kind   *kinds.Kind
	object kinds.Object
	line   int
	fault  func(path, format string, args ...any) error // makes an error for a field
}

// Fault is an error in a file, with its place.
type Fault struct {
	File   string
	Line   int
	Reason string
}

// Error returns "file:line: reason".
func (f *Fault) Error() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Reason) }

// parse parses the objects of one file: YAML or JSON documents and the lists of kubectl get; or a
// profile, which must be the file's only document. Every error is a [Fault].
func parse(file string, text []byte, table []kinds.Kind) (*contents, error) {
	c := &contents{
		as:  make(map[objects.Object]written),
		set: objects.Set{At: make(map[objects.Object]string), Network: kinds.NewNetwork(table)},
	}
	docs := documents(text)
	if len(docs) == 1 {
		p := &parser{file: file, doc: docs[0], contents: c}
		if text, keep := p.profile(); text != nil {
			return c, keep(text)
		}
	}
	for _, d := range docs {
		p := &parser{file: file, doc: d, kinds: table, contents: c}
		if err := p.document(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parser reads one document into contents.
type parser struct {
	*contents
	file  string
	doc   *document
	kinds []kinds.Kind
}

// fault is an error at the line of path, a field path such as "items[0].spec.priority".
func (p *parser) fault(path, format string, args ...any) error {
	return &Fault{File: p.file, Line: p.doc.line(path), Reason: fmt.Sprintf(format, args...)}
}

// profile is the document in JSON if it is one that an object may name, and no object: a profile,
// which says what prefill or decode take, or has batches, or kinds of hardware. Keep reads it. Else
// it is nil.
func (p *parser) profile() (is []byte, keep func([]byte) error) {
	text, err := yaml.YAMLToJSONStrict(p.doc.text)
	if err != nil {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	switch {
	case json.Unmarshal(text, &fields) != nil || fields["apiVersion"] != nil:
	case fields["prefill"] != nil || fields["decode"] != nil:
		return text, p.keepProfile
	case fields["batches"] != nil:
		return text, p.keepBatches
	case fields["hardware"] != nil && fields["kind"] == nil:
		return text, p.keepHardware
	}
	return nil, nil
}

// keepProfile reads the profile of an engine.
func (p *parser) keepProfile(text []byte) error {
	var is profile.Profile
	if err := p.decodeProfile(text, &is); err != nil {
		return err
	}
	p.set.Profiles = map[string]profile.Profile{filepath.Base(p.file): is}
	return nil
}

// keepBatches reads a profile by batch.
func (p *parser) keepBatches(text []byte) error {
	var is profile.Batches
	if err := p.decodeProfile(text, &is); err != nil {
		return err
	}
	p.set.Batches = map[string]*profile.Batches{filepath.Base(p.file): is.Ready()}
	return nil
}

// keepHardware reads the kinds of hardware that CapacityPlans share.
func (p *parser) keepHardware(text []byte) error {
	var is struct {
		Hardware []v1alpha1.PlanHardware `json:"hardware"`
	}
	if err := p.decodeStrictly(text, &is, "hardware"); err != nil {
		return err
	}
	if faults := objects.CheckPlanHardware(field.NewPath("hardware"), is.Hardware); len(faults) > 0 {
		return p.fault(faults[0].Field, "%v", faults[0])
	}
	p.set.Hardware = map[string][]v1alpha1.PlanHardware{filepath.Base(p.file): is.Hardware}
	return nil
}

func (p *parser) decodeProfile(text []byte, into interface{ Faults() []profile.Fault }) error {
	if err := p.decodeStrictly(text, into, "profile"); err != nil {
		return err
	}
	if all := into.Faults(); len(all) > 0 {
		return p.fault(all[0].Field, "profile: %v", all[0])
	}
	return nil
}

// decodeStrictly reads a document, of a kind for people, that has no field that its Go type does
// not have.
func (p *parser) decodeStrictly(text []byte, into any, kind string) error {
	unknown, err := p.decode("", text, into)
	if err == nil && len(unknown) > 0 {
		err = p.fault(unknown[0].path, "%s: %s", kind, unknown[0].refused())
	}
	return err
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

// object parses the object at path; the empty path is the document itself.
func (p *parser) object(path string, text []byte) error {
	var meta struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &meta); err != nil {
		return p.fault(path, "not a Kubernetes object: it needs apiVersion, kind and metadata")
	}
	named := false // a known kind's name may also end in List
	for i := range p.kinds {
		k := &p.kinds[i]
		if meta.Kind != k.Kind {
			continue
		}
		if meta.APIVersion == k.GroupVersion().String() {
			return p.read(path, text, k)
		}
		named = true
	}
	if strings.HasSuffix(meta.Kind, "List") && !named { // kubectl get -o yaml
		for i, item := range meta.Items {
			if err := p.object(fmt.Sprintf("items[%d]", i), item); err != nil {
				return err
			}
		}
		return nil
	}
	for _, k := range slices.Concat(kinds.ByName(), kinds.Plans()) {
		if meta.Kind == k.Kind && meta.APIVersion == k.GroupVersion().String() {
			return nil // only another program uses this kind, so it is not decoded
		}
	}
	if isForeign(schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind)) {
		p.foreign = append(p.foreign, meta.APIVersion+" "+meta.Kind)
		return nil
	}
	return p.fault(join(path, "kind"), "apiVersion %q, kind %q is not an object that Headgate reads; it reads %s", meta.APIVersion,
		meta.Kind, names(p.kinds))
}

// names lists kinds for people, grouped by version.
func names(table []kinds.Kind) string {
	var versions []schema.GroupVersion
	of := make(map[schema.GroupVersion][]string)
	for _, k := range table {
		v := k.GroupVersion()
		if of[v] == nil {
			versions = append(versions, v)
		}
		of[v] = append(of[v], k.Kind)
	}
	all := make([]string, len(versions))
	for i, v := range versions {
		all[i] = v.String() + " " + and(of[v])
	}
	return and(all)
}

// and formats words as "a, b and c".
func and(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// read parses an object of a kind.
func (p *parser) read(path string, text []byte, k *kinds.Kind) error {
	o := k.New()
	unknown, err := p.decode(path, text, o)
	if err != nil {
		return err
	}
	switch {
	case k.ClusterScoped:
		o.SetNamespace("") // an API server also removes the namespace
	case o.GetNamespace() == "":
		o.SetNamespace(defaultNamespace)
	}
	id := objects.Object{Kind: k.Kind, Name: objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}}
	if k.Strict && len(unknown) > 0 {
		return p.fault(join(path, unknown[0].path), "%s: %s", id, unknown[0].refused())
	}
	p.note(path, id, unknown)
	kept, faults := k.Folder(o)
	if len(faults) > 0 {
		return p.fault(join(path, faults[0].Field), "%s: %v", id, faults[0])
	}
	name := join(path, "metadata.name")
	if first, ok := p.as[id]; ok {
		return p.fault(name, "%s is defined twice, first at line %d", id, first.line)
	}
	line := p.doc.line(name)
	fault := func(at, format string, args ...any) error {
		return p.fault(join(path, at), "%s: "+format, append([]any{id}, args...)...)
	}
	p.as[id], p.set.At[id] = written{k, o, line, fault}, fmt.Sprintf("%s:%d", p.file, line)
	k.Keep(&p.set, kept)
	return nil
}

func (p *parser) note(path string, id objects.Object, unknown []unknownField) {
	for _, u := range unknown {
		p.notes = append(p.notes, p.fault(join(path, u.path), "%s: %s: ignored", id, u.reason).Error())
	}
}

// unknownField is a field that the Go type lacks. Known are the fields that it has there.
type unknownField struct {
	path, reason string
	known        []string
}

// refused returns the reason for which the field makes its object invalid.
func (u *unknownField) refused() string {
	if len(u.known) == 0 {
		return u.reason
	}
	return u.reason + "; known fields are " + and(u.known)
}

// decode decodes text into the object and returns the fields that its type lacks.
func (p *parser) decode(path string, text []byte, into any) ([]unknownField, error) {
	strict, err := kjson.UnmarshalStrict(text, into, kjson.DisallowUnknownFields)
	if err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, p.fault(join(path, wrong.Field), "%s: want %s, not %s%s", wrong.Field, jsonName(wrong), wrong.Value,
				typeHint(wrong))
		}
		if _, ok := errors.AsType[base64.CorruptInputError](err); ok {
			return nil, p.notBase64(path, text)
		}
		// Errors of custom unmarshalers, such as for a duration, have no position but quote the
		// value.
		reason := err.Error()
		return nil, &Fault{File: p.file, Line: p.doc.lineOfQuoted(reason, path), Reason: reason}
	}
	var unknown []unknownField
	for _, e := range strict {
		if at, ok := errors.AsType[kjson.FieldError](e); ok {
			unknown = append(unknown, unknownField{at.FieldPath(), e.Error(), knownFields(reflect.TypeOf(into), at.FieldPath())})
		}
	}
	return unknown, nil
}

// notBase64 names the Secret's data that is not base64; the decoder's error does not.
func (p *parser) notBase64(path string, text []byte) error {
	var secret struct {
		Data map[string]string `json:"data"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &secret) // cannot fail: the same text was decoded before
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		if _, err := base64.StdEncoding.DecodeString(secret.Data[key]); err != nil {
			at := "data[" + key + "]"
			return p.fault(join(path, at), "%s is not base64: put plain text under stringData", at)
		}
	}
	return p.fault(path, "some of it is not base64")
}

// jsonName returns the YAML name of a Go type.
func jsonName(wrong *json.UnmarshalTypeError) string {
	switch kind := wrong.Type.Kind().String(); {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
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
