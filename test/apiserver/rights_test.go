package apiserver_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/test/apiserver"
)

func TestUnusedRightsAndDeniedRequestsAreFound(t *testing.T) {
	s := apiserver.Run(t)
	o := s.Objects(t)
	o.Apply(`{apiVersion: v1, kind: Namespace, metadata: {name: system}}`)
	o.In("system").Apply(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reads}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reads}
subjects: [{kind: ServiceAccount, name: reader, namespace: system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: writes}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [mine, other], verbs: [delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: writes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: writes}
subjects: [{kind: ServiceAccount, name: reader, namespace: system}]
`)
	config, err := s.ServiceAccount(t.Context(), "system", "reader")
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, config)
	maps := c.Resource(configMaps).Namespace("system")
	mine := apiserver.ReadObjects(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}")[0]
	if _, err := maps.Create(t.Context(), mine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resource(pods).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Fatal("config maps are listed")
	}

	requests, err := apiserver.Requests(s.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	unused, denied, err := apiserver.Rights(t.Context(), s.Admin(), "system", requests)
	if want := []string{"reader: delete configmaps other in system", "reader: get pods"}; err != nil || !slices.Equal(unused, want) {
		t.Errorf("%v: unused are %q, want %q", err, unused, want)
	}
	if want := []string{"reader: list configmaps"}; !slices.Equal(denied, want) {
		t.Errorf("denied is %q, want %q", denied, want)
	}
}
