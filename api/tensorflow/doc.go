// Package tensorflow is the part of TensorFlow Serving's interface by which its models are managed,
// with what is generated from it. See tensorflow.proto.
package tensorflow
