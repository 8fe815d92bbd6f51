// Package headgate holds what programs are built with: the data plane that envoy.yaml describes,
// and the pods that it runs in.
package headgate

import _ "embed"

// EnvoyYAML is envoy.yaml. Control takes the configuration of a Gateway's Envoys from it.
//
//go:embed envoy.yaml
var EnvoyYAML []byte

// GatewayYAML is the manifest of the static data plane. Control takes the pods of a Gateway's
// Envoys from it.
//
//go:embed manifests/static/gateway.yaml
var GatewayYAML []byte

// ControlRolesYAML and ReaderRolesYAML are the manifests with the roles of control. The roles of
// the second one are also those of extproc.
var (
	//go:embed manifests/base/control/rbac.yaml
	ControlRolesYAML []byte
	//go:embed manifests/base/gateway/rbac.yaml
	ReaderRolesYAML []byte
)
