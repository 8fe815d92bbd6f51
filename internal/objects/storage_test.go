package objects_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

func stored(spec v1alpha1.ModelSpec) *v1alpha1.Model {
	spec.PoolRef.Name = "p"
	return &v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}, Spec: spec}
}

// Runtimes and agents get storage as the JSON that ModelMesh sends, and a key as it is.
func TestStorageIsSentAsModelMeshDoes(t *testing.T) {
	for _, row := range []struct {
		spec v1alpha1.ModelSpec
		want string
	}{
		{v1alpha1.ModelSpec{}, ""},
		{v1alpha1.ModelSpec{Key: `{"a": 1}`}, `{"a": 1}`},
		{v1alpha1.ModelSpec{Key: "opaque"}, "opaque"},
		{v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{}}, `{}`},
		{v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{Key: "my_storage"}}, `{"storage_key":"my_storage"}`},
		{
			v1alpha1.ModelSpec{Type: "sklearn", Storage: &v1alpha1.Storage{
				Key: "k", SchemaPath: "schemas/a.json",
				Parameters: map[string]v1alpha1.StorageParameter{"type": "s3", "bucket": "b<&>"},
			}},
			`{"model_type":{"name":"sklearn"},"schema_path":"schemas/a.json","storage_key":"k","storage_params":{"bucket":"b<&>","type":"s3"}}`,
		},
	} {
		m := stored(row.spec)
		if errs := objects.CheckModelObject(m); len(errs) > 0 {
			t.Errorf("%+v: %v", row.spec, errs)
		}
		if got := objects.EntryOf(m).Info; got != row.want {
			t.Errorf("%+v: the engine gets %s, want %s", row.spec, got, row.want)
		}
	}
}

func TestStorageIsValidated(t *testing.T) {
	long := v1alpha1.StorageParameter(strings.Repeat("x", 4097))
	parameters := func(name string, value v1alpha1.StorageParameter) *v1alpha1.Storage {
		return &v1alpha1.Storage{Parameters: map[string]v1alpha1.StorageParameter{name: value}}
	}
	for _, row := range []struct {
		spec v1alpha1.ModelSpec
		want string
	}{
		{v1alpha1.ModelSpec{Key: "{}", Storage: &v1alpha1.Storage{Key: "k"}}, "spec.key: Invalid value: \"\": with storage, control writes the key"},
		{v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{Key: "a/b"}}, "spec.storage.key: Invalid value: \"a/b\": no Secret can have this key"},
		{v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{Key: ".."}}, "no Secret can have this key"},
		{v1alpha1.ModelSpec{Storage: parameters("", "x")}, "spec.storage.parameters: Invalid value"},
		{v1alpha1.ModelSpec{Storage: parameters(strings.Repeat("n", 254), "x")}, "the name of a parameter has 1 to 253 characters"},
		{v1alpha1.ModelSpec{Storage: parameters("bucket", long)}, "spec.storage.parameters[bucket]: Too long"},
		{v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{SchemaPath: string(long)}}, "spec.storage.schemaPath: Too long"},
	} {
		errs := objects.CheckModelObject(stored(row.spec))
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), row.want) {
			t.Errorf("%+v: %v, want %s", row.spec, errs, row.want)
		}
	}
}

// A change of storage or key is refused without showing a value, which may be secret.
func TestStorageMayNotChange(t *testing.T) {
	const secret = "hunter2"
	with := func(value v1alpha1.StorageParameter) *v1alpha1.Model {
		return stored(v1alpha1.ModelSpec{Storage: &v1alpha1.Storage{
			Key: "k", Parameters: map[string]v1alpha1.StorageParameter{"secret_access_key": value},
		}})
	}
	was := with(secret)
	for _, row := range []struct {
		was, is *v1alpha1.Model
		want    string
	}{
		{was, with(secret), ""},
		{was, with("other"), "spec.storage: Forbidden"},
		{was, stored(v1alpha1.ModelSpec{}), "spec.storage: Forbidden"},
		{stored(v1alpha1.ModelSpec{}), was, "spec.storage: Forbidden"},
		{stored(v1alpha1.ModelSpec{Key: secret}), stored(v1alpha1.ModelSpec{Key: "x"}), "spec.key: Forbidden"},
	} {
		errs := objects.CheckModelChange(row.was, row.is).ToAggregate()
		switch {
		case errs == nil != (row.want == ""):
			t.Errorf("from %+v to %+v: %v, want %q", row.was.Spec, row.is.Spec, errs, row.want)
		case errs != nil && (!strings.Contains(errs.Error(), row.want) || strings.Contains(errs.Error(), secret)):
			t.Errorf("the error is %v, want %q without the secret", errs, row.want)
		}
	}
}
