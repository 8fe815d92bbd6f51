// Package inference is KServe's V2 inference protocol over gRPC, with what is generated from it.
// See inference.proto.
package inference
